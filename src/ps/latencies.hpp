// How long a server's answers took, as a Prometheus histogram counts them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/units.hpp"

namespace tessera::ps {

// One thread adds, any number look.
class Latencies {
 public:
  // Upper ends of the classes, in seconds; a last class has what is longer.
  static constexpr std::array<double, 14> kEnds = {2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.5, 2.5};
  void add(Seconds took) {
    std::size_t place = 0;
    while (place < kEnds.size() && took.value > kEnds[place]) ++place;
    counts_[place].fetch_add(1, std::memory_order_relaxed);
    nanoseconds_.fetch_add(static_cast<std::uint64_t>(took.value * 1e9), std::memory_order_relaxed);
  }
  // Of the class; kEnds.size(): of the last one.
  std::uint64_t count(std::size_t place) const { return counts_[place].load(std::memory_order_relaxed); }
  double seconds() const { return static_cast<double>(nanoseconds_.load(std::memory_order_relaxed)) * 1e-9; }

 private:
  std::array<std::atomic<std::uint64_t>, kEnds.size() + 1> counts_ = {};
  std::atomic<std::uint64_t> nanoseconds_ = 0;
};

// Of a server: from a request's first try to its answer, waiting for other workers included.
struct AnswerLatencies {
  Latencies pulls, pushes;
};

}  // namespace tessera::ps
