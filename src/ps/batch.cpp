#include "ps/batch.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tessera::ps {
namespace {

constexpr std::size_t kSlotsAhead = 16;

// Other bits than those that the servers' indices are ordered by.
std::uint64_t mixed(Key key) {
  key = (key ^ (key >> 32)) * 0xD6E8FEB86659FD93ull;
  return key ^ (key >> 32);
}

std::size_t server_of_mixed(std::uint64_t mixed_key, std::size_t servers) {
  return static_cast<std::size_t>(((mixed_key >> 32) * servers) >> 32);
}

}  // namespace

std::size_t server_of(Key key, std::size_t servers) { return server_of_mixed(mixed(key), servers); }

// One that has not begun is of no keys, and not of none either.
bool Batch::is_of(std::span<const Key> keys) const { return !parts_.empty() && std::ranges::equal(keys, keys_); }

void Batch::start(std::span<const Key> keys, std::size_t servers) {
  keys_.assign(keys.begin(), keys.end());
  parts_.resize(servers);
  for (Part& part : parts_) {
    part.keys.clear();
    part.positions.clear();
    part.tickets.clear();
  }
  repeats_.clear();
  next_.assign(keys.size(), kNone);
  last_.resize(keys.size());
  if (slots_.size() < 2 * keys.size() || ++stamp_ == 0) {
    slots_.assign(std::bit_ceil(std::max<std::size_t>(2 * keys.size(), 16)), Slot{0, 0, 0});
    stamp_ = 1;
  }
  dealt_ = 0;
}

bool Batch::deal(std::size_t most) {
  const std::span<const Key> keys = keys_;
  const std::size_t mask = slots_.size() - 1, end = std::min(dealt_ + most, keys.size());
  for (std::size_t i = dealt_; i < end; ++i) {
    if (i + kSlotsAhead < keys.size()) __builtin_prefetch(&slots_[mixed(keys[i + kSlotsAhead]) & mask], 1);
    const auto position = static_cast<std::uint32_t>(i);
    const std::uint64_t hash = mixed(keys[i]);
    std::size_t place = hash & mask;
    while (slots_[place].stamp == stamp_ && slots_[place].key != keys[i]) place = (place + 1) & mask;
    Slot& slot = slots_[place];
    if (slot.stamp != stamp_) {
      slot = {keys[i], stamp_, position};
      last_[i] = position;
      Part& part = parts_[server_of_mixed(hash, parts_.size())];
      part.keys.push_back(keys[i]);
      part.positions.push_back(position);
    } else {
      next_[last_[slot.first]] = position;
      last_[slot.first] = position;
      repeats_.push_back({slot.first, position});
    }
  }
  dealt_ = end;
  return end < keys.size();
}

void Batch::add_up(const Part& part, std::size_t begin, std::size_t end, std::span<const float> rows, std::span<float> sums) const {
  const std::size_t dimension = end == begin ? 0 : sums.size() / (end - begin);
  for (std::size_t i = begin; i < end; ++i) {
    float* const sum = sums.data() + (i - begin) * dimension;
    std::memcpy(sum, rows.data() + part.positions[i] * dimension, dimension * sizeof(float));
    for (std::uint32_t at = next_[part.positions[i]]; at != kNone; at = next_[at])
      for (std::size_t d = 0; d < dimension; ++d) sum[d] += rows[at * dimension + d];
  }
}

}  // namespace tessera::ps
