// Internal. Rows of one size that never move, found by their number.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ps/pages.hpp"

namespace tessera::ps {

class Slab {
 public:
  static constexpr std::uint32_t kChunkRows = 1 << 15;  // what memory comes in

  // Rows of no bytes take no memory, and none may be asked for.
  explicit Slab(std::size_t row_bytes) : row_bytes_(row_bytes), pages_(row_bytes_ * kChunkRows) {}

  std::size_t row_bytes() const { return row_bytes_; }
  std::byte* at(std::uint32_t row) const { return chunks_[row / kChunkRows] + row % kChunkRows * row_bytes_; }
  // So that there are rows 0 to `rows` - 1. The new ones are zero.
  void grow_to(std::size_t rows) {
    while (row_bytes_ > 0 && chunks_.size() * kChunkRows < rows) {
      chunks_.reserve(chunks_.size() + 1);
      chunks_.push_back(pages_.take());
    }
  }
  // Memory for the rows of this chunk, while those of others may be in other slabs.
  void add_chunk(std::size_t chunk) {
    if (row_bytes_ == 0) return;
    chunks_.resize(std::max(chunks_.size(), chunk + 1));
    chunks_[chunk] = pages_.take();
  }
  // So that there are rows 0 to `rows` - 1 and few others.
  void shrink_to(std::size_t rows) {
    while (!chunks_.empty() && (chunks_.size() - 1) * kChunkRows >= rows) {
      pages_.give_back(chunks_.back());
      chunks_.pop_back();
    }
  }
  // Where the row is, asked for from memory.
  const std::byte* ask_to_read(std::uint32_t row) const { return ask<0>(row); }
  std::byte* ask_to_write(std::uint32_t row) const { return ask<1>(row); }
  std::size_t bytes() const { return pages_.bytes() + chunks_.capacity() * sizeof(std::byte*); }

 private:
  static constexpr std::size_t kLine = 64, kMostLines = 8;  // the processor fetches what follows by itself

  template <int kWrites>
  std::byte* ask(std::uint32_t row) const {
    std::byte* const place = at(row);
    __builtin_prefetch(place, kWrites);
    for (std::size_t offset = kLine; offset < row_bytes_ && offset < kMostLines * kLine; offset += kLine)
      __builtin_prefetch(place + offset, kWrites);
    return place;
  }

  std::size_t row_bytes_;
  Pages pages_;
  std::vector<std::byte*> chunks_;
};

}  // namespace tessera::ps
