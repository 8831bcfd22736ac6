#include "train/meter.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/clock.hpp"

namespace tessera::train {
namespace {

constexpr int kLeastRounds = 5;
constexpr int kFewestRounds = 3;
constexpr int kMostRounds = 10;
constexpr double kCoverage = 0.92;
constexpr double kNarrow = 0.05;
constexpr double kMostRepeats = 256;
constexpr double kWarmUp = 0.1;  // of a sample

// How many of `count` sorted samples may be left out at each end for the rest to cover the median with kCoverage.
std::size_t left_out(std::size_t count) {
  double term = std::pow(0.5, static_cast<double>(count));
  double below = term;  // the chance that the median lies outside of what is left, on one side
  std::size_t out = 0;
  for (;;) {
    term *= static_cast<double>(count - out) / static_cast<double>(out + 1);
    if (1 - 2 * (below + term) < kCoverage) return out;
    below += term;
    ++out;
  }
}

double middle_of(const std::vector<double>& sorted) {
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

}  // namespace

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return middle_of(values);
}

std::vector<double> speeds_of(const std::vector<double>& seconds) {
  constexpr double kSame = 1.25;
  std::vector<double> slowest_first = seconds;
  std::sort(slowest_first.begin(), slowest_first.end(), std::greater<>());
  std::vector<double> out;
  for (const double own : seconds) {
    double alike = slowest_first.front();  // the slowest of those that this host counts as equal to
    for (const double other : slowest_first)
      if (other >= own && other * kSame <= alike) alike = other;
    out.push_back(std::round(100 * slowest_first.front() / alike) / 100);
  }
  const bool equal = std::all_of(out.begin(), out.end(), [](double speed) { return speed == 1; });
  return equal ? std::vector<double>() : out;
}

profile::MeasuredValue Samples::median() const {
  std::vector<double> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t out = left_out(sorted.size());
  return {middle_of(sorted), sorted[out], sorted[sorted.size() - 1 - out]};
}

bool Samples::settled(double scale) const {
  const profile::MeasuredValue measured = median();
  return measured.high - measured.low <= kNarrow * std::max(std::abs(measured.median), scale);
}

double Meter::time(const std::function<void()>& work) const {
  together();
  const double begin = real_clock().now().value;
  work();
  return slowest(real_clock().now().value - begin);
}

double Meter::slowest(double seconds) const {
  comm_.world().all_reduce(&seconds, 1, comm::DataType::f64, comm::Reduction::max).wait();
  return seconds;
}

std::vector<double> Meter::of_all(double own) const {
  std::vector<double> out(static_cast<std::size_t>(comm_.world_size()), 0);
  out[static_cast<std::size_t>(comm_.rank())] = own;
  comm_.world().all_reduce(out.data(), out.size(), comm::DataType::f64).wait();
  return out;
}

int Meter::repeats(double seconds) const { return static_cast<int>(slowest(std::clamp(std::ceil(sample_ / seconds), 1.0, kMostRepeats))); }

void Meter::warm(const std::function<void()>& work) const {
  together();
  const double begin = real_clock().now().value;
  do work();
  while (real_clock().now().value - begin < kWarmUp * sample_);
}

bool Meter::past(Seconds deadline) const { return slowest(real_clock().now().value - deadline.value) > 0; }

void Meter::rounds(Seconds budget, const std::function<void(int)>& round, const std::function<bool()>& settled) const {
  const Seconds begin = real_clock().now();
  for (int i = 0; i < kMostRounds; ++i) {
    if (i >= kLeastRounds && (settled() || past(begin + budget))) return;
    if (i >= kFewestRounds && past(begin + 2 * budget)) return;
    round(i);
  }
}

}  // namespace tessera::train
