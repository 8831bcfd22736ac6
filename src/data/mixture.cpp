#include "data/mixture.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "data/permutation.hpp"

namespace tessera::data {
namespace {

// Samples of each source in an epoch.
std::vector<std::int64_t> shares_of(const std::vector<std::int64_t>& sizes, const std::vector<double>& weights) {
  if (weights.empty()) return sizes;
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double length = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k < sizes.size(); ++k) length = std::min(length, static_cast<double>(sizes[k]) * sum / weights[k]);
  std::vector<std::int64_t> shares;
  for (const double weight : weights) shares.push_back(std::max<std::int64_t>(1, std::llround(length * weight / sum)));
  return shares;
}

}  // namespace

Mixture::Mixture(std::vector<std::int64_t> sizes, const std::vector<double>& weights, std::uint64_t seed)
    : sizes_(std::move(sizes)), begins_(1, 0), seed_(seed) {
  ensure(!sizes_.empty() && (weights.empty() || weights.size() == sizes_.size()), "a mixture has sources, and a weight for all or none");
  for (const std::int64_t share : shares_of(sizes_, weights)) begins_.push_back(begins_.back() + share);
}

Mixture::Draw Mixture::at(std::int64_t position) const {
  const auto epoch = static_cast<std::uint64_t>(position / begins_.back());
  const auto slot = static_cast<std::int64_t>(Permutation(static_cast<std::uint64_t>(begins_.back()), seed_of(seed_, epoch))
                                                  .at(static_cast<std::uint64_t>(position % begins_.back())));
  const auto source = static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), slot) - begins_.begin()) - 1;
  const std::int64_t in_slots = slot - begins_[source];
  const std::int64_t size = sizes_[source];
  // All of a source that an epoch shows whole is in random order already.
  if (per_epoch(source) == size) return {source, in_slots};
  const std::int64_t drawn = static_cast<std::int64_t>(epoch) * per_epoch(source) + in_slots;
  const Permutation order(static_cast<std::uint64_t>(size), seed_of(seed_, static_cast<std::uint64_t>(drawn / size), source + 1));
  return {source, static_cast<std::int64_t>(order.at(static_cast<std::uint64_t>(drawn % size)))};
}

std::vector<Draw> draws_of(const Mixture& order, std::int64_t step, std::int64_t global_batch) {
  std::vector<Draw> draws;
  draws.reserve(static_cast<std::size_t>(global_batch));
  for (std::int64_t position = step * global_batch; position < (step + 1) * global_batch; ++position)
    draws.push_back({order.at(position).sample, position / order.epoch()});
  return draws;
}

}  // namespace tessera::data
