#include "cluster/quantity.hpp"

#include <charconv>
#include <cmath>
#include <span>

namespace tessera::cluster {
namespace {

struct Unit {
  const char* name;
  double factor;
};

constexpr Unit kBandwidth[] = {{"TB/s", 1e12},      {"GB/s", 1e9},      {"MB/s", 1e6},      {"B/s", 1},
                               {"Tbit/s", 1.25e11}, {"Gbit/s", 1.25e8}, {"Mbit/s", 1.25e5}, {"", 1}};
constexpr Unit kRate[] = {{"PFLOP/s", 1e15}, {"TFLOP/s", 1e12}, {"GFLOP/s", 1e9}, {"FLOP/s", 1}, {"", 1}};
constexpr Unit kTime[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"", 1}};

// At least zero; infinite values do not pass.
bool parse(const std::string& words, std::span<const Unit> units, double& value) {
  double number = 0;
  const auto [end, problem] = std::from_chars(words.data(), words.data() + words.size(), number);
  std::string unit(end, words.data() + words.size());
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  for (const Unit& candidate : units) {
    if (problem != std::errc() || unit != candidate.name) continue;
    value = number * candidate.factor;
    return std::isfinite(value) && value >= 0;
  }
  return false;
}

double read(const ConfigNode& node, std::span<const Unit> units, const char* expected) {
  double value = 0;
  const std::string words = node.as_string();
  if (!parse(words, units, value)) throw node.error("found '" + words + "'", expected);
  return value;
}

std::string shortest(double value) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

std::string write(double value, std::span<const Unit> units) {
  std::string best = shortest(value);
  constexpr std::size_t kLongest = 6;
  for (const Unit& unit : units) {
    const double scaled = value / unit.factor;
    if (*unit.name == '\0' || scaled < 1 || scaled >= 1000) continue;
    const std::string number = shortest(scaled);
    double back = 0;
    if (number.size() <= kLongest && parse(number + " " + unit.name, units, back) && back == value) return number + " " + unit.name;
  }
  return best;
}

}  // namespace

BytesPerSecond bandwidth_from(const ConfigNode& node) {
  return BytesPerSecond(read(node, kBandwidth, "a bandwidth such as 450 GB/s or 100 Gbit/s"));
}
FlopsPerSecond rate_from(const ConfigNode& node) { return FlopsPerSecond(read(node, kRate, "a rate such as 989 TFLOP/s")); }
Seconds seconds_from(const ConfigNode& node) { return Seconds(read(node, kTime, "a time such as 5 us or 0.2 ms")); }

std::string written(BytesPerSecond bandwidth) { return write(bandwidth.value, std::span(kBandwidth).first(4)); }
std::string written(FlopsPerSecond rate) { return write(rate.value, kRate); }
std::string written(Seconds seconds) { return write(seconds.value, kTime); }

std::string written(Bytes bytes) {
  for (const auto& [shift, name] : {std::pair{40, "TiB"}, {30, "GiB"}, {20, "MiB"}})
    if (bytes.value > 0 && bytes.value % (std::int64_t{1} << shift) == 0) return text(bytes.value >> shift, ' ', name);
  return std::to_string(bytes.value);
}

}  // namespace tessera::cluster
