// Internal: which degrees divide, and the valid one nearest to a wish.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "model/model.hpp"

namespace tessera::plan {

inline std::vector<std::int64_t> divisors_of(std::int64_t whole) {
  std::vector<std::int64_t> low;
  std::vector<std::int64_t> high;
  for (std::int64_t d = 1; d * d <= whole; ++d) {
    if (whole % d != 0) continue;
    low.push_back(d);
    if (d != whole / d) high.push_back(whole / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

// The smaller of two equally near ones. `valid` is not empty.
inline std::int64_t nearest_of(const std::vector<std::int64_t>& valid, std::int64_t wish) {
  return *std::min_element(valid.begin(), valid.end(), [&](std::int64_t a, std::int64_t b) {
    const auto away = [&](std::int64_t value) { return value > wish ? value - wish : wish - value; };
    return away(a) < away(b);
  });
}

// One of a block's dims; 0 where it has none of the name.
inline double option_of(const model::BlockSpec& block, const char* key) {
  const auto found = block.dims.find(key);
  return found == block.dims.end() ? 0 : found->second;
}

}  // namespace tessera::plan
