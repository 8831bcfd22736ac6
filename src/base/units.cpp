#include "base/units.hpp"

#include <fmt/format.h>
#include <array>
#include <cmath>

namespace tessera {
namespace {

template <std::size_t N>
std::string scaled(double value, double step, const std::array<const char*, N>& names) {
  std::size_t index = 0;
  while (std::abs(value) >= step && index + 1 < N) {
    value /= step;
    ++index;
  }
  const double size = std::abs(value);
  const int digits = index == 0 && value == std::floor(value) ? 0 : size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return fmt::format("{:.{}f}{}", value, digits, names[index]);
}

constexpr std::array<const char*, 6> kRates = {"", " k", " M", " G", " T", " P"};

std::string with_unit(double value, const char* unit) {
  std::string number = scaled(value, 1000, kRates);
  if (number.find(' ') == std::string::npos) number += ' ';
  return number + unit;
}

}  // namespace

std::string to_text(Bytes bytes) {
  constexpr std::array<const char*, 6> names = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return scaled(static_cast<double>(bytes.value), 1024, names);
}

std::string to_text(Seconds seconds) {
  const double value = seconds.value;
  const double size = std::abs(value);
  if (size < 1e-3) return fmt::format("{:.1f} us", value * 1e6);
  if (size < 1) return fmt::format("{:.{}f} ms", value * 1e3, size < 0.1 ? 2 : 1);
  if (size < 120) return fmt::format("{:.2f} s", value);
  const auto whole = static_cast<long long>(std::llround(value));
  if (size < 7200) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, whole % 3600 / 60);
}

std::string to_text(Flops flops) { return with_unit(flops.value, "FLOP"); }
std::string to_text(FlopsPerSecond rate) { return with_unit(rate.value, "FLOP/s"); }
std::string to_text(BytesPerSecond rate) { return with_unit(rate.value, "B/s"); }

std::string fixed(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }

std::string count_text(double count) {
  constexpr std::array<const char*, 5> names = {"", " k", " M", " B", " T"};
  return scaled(count, 1000, names);
}

}  // namespace tessera
