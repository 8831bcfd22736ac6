// How long a server's answers took, counted by classes of length.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/units.hpp"

namespace tessera::ps {

struct Latencies {
  // Ten classes a factor of ten, so that a percentile is known to a quarter of itself.
  static constexpr std::array<double, 10> kInDecade = {1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8};
  static constexpr std::size_t kEnds = 61;  // from 10 us to 10 s
  // The upper end of a class, in seconds; one more class, kEnds, has what is longer.
  static double end(std::size_t place);

  std::array<std::uint64_t, kEnds + 1> counts = {};
  Seconds sum = {};

  void add(Seconds took);
  std::uint64_t count() const;
  // The latency that a share 0..1 of all requests did not exceed; lengths within a class count as evenly spread, and the last class as its
  // lower end. Unset if nothing was counted.
  std::optional<Seconds> quantile(double share) const;

  Latencies& operator+=(const Latencies& other);
};

// What has come between two looks at one server; all of `after` where the server has begun anew in between.
Latencies since(const Latencies& before, const Latencies& after);

// Latencies of one server's part of a table: from a request's first try to its answer, including the wait for other workers.
struct AnswerLatencies {
  Latencies pulls, pushes;
};

}  // namespace tessera::ps
