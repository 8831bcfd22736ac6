// Quantities with their unit in the type, so that seconds and bytes cannot be mixed up.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace tessera {

template <typename Tag, typename Rep>
struct Quantity {
  Rep value{};

  constexpr Quantity() = default;
  constexpr explicit Quantity(Rep v) : value(v) {}

  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity other) {
    value += other.value;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity other) {
    value -= other.value;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value + b.value); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value - b.value); }
  friend constexpr Quantity operator*(Quantity a, Rep b) { return Quantity(a.value * b); }
  friend constexpr Quantity operator*(Rep a, Quantity b) { return Quantity(a * b.value); }
  friend constexpr Quantity operator/(Quantity a, Rep b) { return Quantity(a.value / b); }
  friend constexpr double operator/(Quantity a, Quantity b) { return static_cast<double>(a.value) / static_cast<double>(b.value); }
};

using Bytes = Quantity<struct BytesTag, std::int64_t>;
using Seconds = Quantity<struct SecondsTag, double>;
using Flops = Quantity<struct FlopsTag, double>;  // a count of floating-point operations
using FlopsPerSecond = Quantity<struct FlopsRateTag, double>;
using BytesPerSecond = Quantity<struct BytesRateTag, double>;

constexpr Seconds operator/(Flops work, FlopsPerSecond rate) { return Seconds(work.value / rate.value); }
constexpr Seconds operator/(Bytes size, BytesPerSecond rate) { return Seconds(static_cast<double>(size.value) / rate.value); }

// For people: "1.50 GiB", "12.3 ms", "989 TFLOP/s", "8.03 B" (count of parameters or tokens).
std::string to_text(Bytes bytes);
std::string to_text(Seconds seconds);
std::string to_text(Flops flops);
std::string to_text(FlopsPerSecond rate);
std::string to_text(BytesPerSecond rate);
std::string count_text(double count);
// "3.1416" for four digits behind the point.
std::string fixed(double value, int digits);

}  // namespace tessera
