// Which elements of a global tensor a piece holds. A tensor is cut along one dimension into parts of ceil(extent / split_size)
// places; the last ones have fewer, or none, where split_size does not divide. A part is a row of equally long runs in the global
// row-major order; two pieces overlap where their runs do.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::checkpoint {

struct Cut {
  int split_dim = -1;
  int split_index = 0;
  int split_size = 1;
  std::int64_t flat_begin = 0;
  std::int64_t flat_end = 0;

  std::int64_t count() const { return flat_end - flat_begin; }
  bool operator==(const Cut&) const = default;
};

// Product of the dimensions; -1 when one is negative or the product of those that are not 0 overflows.
std::int64_t element_count(const std::vector<std::int64_t>& shape);
// Elements of the part that `cut` is a range of. The cut must be valid.
std::int64_t part_count(const std::vector<std::int64_t>& shape, const Cut& cut);
// What is wrong with a cut of such a tensor; empty when nothing is.
std::string problem_of(const std::vector<std::int64_t>& shape, const Cut& cut);

// Calls copy(offset in source, offset in target, elements) for every maximal run of elements that both hold, in ascending
// order, and returns how many there were. Both cuts must be valid for `shape`.
std::int64_t for_overlap(const std::vector<std::int64_t>& shape, const Cut& source, const Cut& target,
                         const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& copy);

// True when the cuts hold each element of the tensor exactly once. They must all be cut into the same parts.
bool covers_once(const std::vector<std::int64_t>& shape, std::vector<Cut> cuts);

}  // namespace tessera::checkpoint
