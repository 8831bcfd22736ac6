// internal: the order in which the samples of several sources are drawn.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/dataset.hpp"

namespace tessera::data {

// An epoch has a fixed number of samples of each source, in a random order of all. Without weights these are all samples of all sources.
// With weights, the samples of source k are weight[k] / (sum of weights) of the epoch, rounded, at least one; and the epoch is as long as
// it takes to see all of the source that is seen first. A source that an epoch does not show whole goes on in the next one where it
// stopped, in a random order of its own for each pass over it. Depends on (sizes, weights, seed) alone; constant time and memory a sample.
// Value type.
class Mixture {
 public:
  // Sizes are positive; weights are empty or as many, positive.
  Mixture(std::vector<std::int64_t> sizes, const std::vector<double>& weights, std::uint64_t seed);

  struct Draw {
    std::size_t source;
    std::int64_t sample;  // of the source
  };
  // The sample at a place of the endless sequence of epochs.
  Draw at(std::int64_t position) const;

  std::int64_t epoch() const { return begins_.back(); }  // samples
  std::int64_t per_epoch(std::size_t source) const { return begins_[source + 1] - begins_[source]; }

 private:
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> begins_;  // of each source among the slots of an epoch, and their number
  std::uint64_t seed_;
};

// The samples of a step, where there is one source alone.
std::vector<Draw> draws_of(const Mixture& order, std::int64_t step, std::int64_t global_batch);

}  // namespace tessera::data
