// Internal. Memory of a table whose rows grow (GrowthStep): each dimension has slabs of its own, so that a short row takes less.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ps/key_index.hpp"
#include "ps/ps.hpp"
#include "ps/slab.hpp"

namespace tessera::ps {

// What such a row knows beside its values: in memory it stands before the optimizer's state, in a stored row behind it.
struct GrowingHead {
  std::uint32_t dimension = 0;  // of its values that are trained so far
  Statistics statistics;
};
static_assert(sizeof(GrowingHead) == 16);

// Rows of all dimensions share one range of numbers, which is dealt to the dimensions in chunks: the number alone says where a row is.
class Widths {
 public:
  struct Width {
    int dimension;
    Slab values, states;  // `states`: GrowingHead, then the optimizer's state
    std::vector<std::uint32_t> free_rows = {};
    std::uint32_t next = 0, end = 0;  // rows of the last chunk that were never used
  };

  // `dimensions`: in ascending order.
  void begin(const TableSpec& spec, const std::vector<int>& dimensions);
  // Whether the table does not use it.
  bool empty() const { return widths_.empty(); }

  const Width& of(std::uint32_t row) const { return widths_[of_chunk_[row / Slab::kChunkRows]]; }
  // kNone: all numbers are in use. `begun` grows by the chunk that is taken where there is no free row. The dimension is one of begin's.
  std::uint32_t take(int dimension, std::uint32_t& begun);
  void free(std::uint32_t row) { widths_[of_chunk_[row / Slab::kChunkRows]].free_rows.push_back(row); }
  // So that as many calls of free() throw nothing.
  void reserve_free(std::size_t count);
  std::size_t bytes() const;

 private:
  std::vector<Width> widths_;
  std::vector<std::uint16_t> of_chunk_;
};

}  // namespace tessera::ps
