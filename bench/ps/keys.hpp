// The keys that tables are asked for, and the servers that have them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.hpp"

namespace tessera::bench {

constexpr int kDimension = 16;
constexpr std::size_t kBatch = 4096 * 26;
constexpr int kBatches = 20;  // of a round

// Keys are spread over all 64 bits, as hashes of names are.
inline std::uint64_t key_of(std::uint64_t row) { return (row + 1) * 0xBF58476D1CE4E5B9ull; }

inline std::uint64_t uniform(Random& random, std::uint64_t rows) { return random.below(rows); }
// Row k with a probability of 1 / k.
inline std::uint64_t zipf(Random& random, std::uint64_t rows) {
  return std::min(rows, static_cast<std::uint64_t>(std::exp(random.uniform() * std::log(static_cast<double>(rows) + 1)))) - 1;
}

using Batches = std::vector<std::vector<std::uint64_t>>;
inline Batches drawn(std::uint64_t (*draw)(Random&, std::uint64_t), std::uint64_t rows, std::uint64_t seed, bool as_keys) {
  Random random(seed);
  Batches batches(kBatches, std::vector<std::uint64_t>(kBatch));
  for (auto& batch : batches)
    for (std::uint64_t& key : batch) {
      key = draw(random, rows);
      if (as_keys) key = key_of(key);
    }
  return batches;
}

inline Batches all_keys(std::uint64_t rows) {
  Batches batches;
  for (std::uint64_t row = 0; row < rows; ++row) {
    if (row % kBatch == 0) batches.emplace_back();
    batches.back().push_back(key_of(row));
  }
  return batches;
}

// Places that commas part.
inline std::vector<std::string> split(const std::string& places) {
  std::vector<std::string> all(1);
  for (const char letter : places) {
    if (letter == ',')
      all.emplace_back();
    else
      all.back() += letter;
  }
  return all;
}

}  // namespace tessera::bench
