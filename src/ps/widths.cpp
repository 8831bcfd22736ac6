#include "ps/widths.hpp"

#include <algorithm>

#include "ps/row_values.hpp"
#include "ps/update.hpp"

namespace tessera::ps {

void Widths::begin(const TableSpec& spec, const std::vector<int>& dimensions) {
  widths_.reserve(dimensions.size());
  for (const int dimension : dimensions)
    widths_.push_back({.dimension = dimension,
                       .values = Slab(row_bytes(spec.type, dimension)),
                       .states = Slab(sizeof(GrowingHead) + state_floats(spec.optimizer, dimension) * sizeof(float))});
}

std::uint32_t Widths::take(int dimension, std::uint32_t& begun) {
  const auto place = std::ranges::find(widths_, dimension, &Width::dimension);
  Width& width = *place;
  if (!width.free_rows.empty()) {
    const std::uint32_t row = width.free_rows.back();
    width.free_rows.pop_back();
    return row;
  }
  if (width.next == width.end) {
    if (begun > KeyIndex::kNone - Slab::kChunkRows) return KeyIndex::kNone;
    const std::uint32_t chunk = begun / Slab::kChunkRows;
    of_chunk_.reserve(of_chunk_.size() + 1);
    width.values.add_chunk(chunk);
    width.states.add_chunk(chunk);
    of_chunk_.push_back(static_cast<std::uint16_t>(place - widths_.begin()));
    width.next = begun;
    width.end = begun += Slab::kChunkRows;
  }
  return width.next++;
}

void Widths::reserve_free(std::size_t count) {
  for (Width& width : widths_) width.free_rows.reserve(width.free_rows.size() + count);
}

std::size_t Widths::bytes() const {
  std::size_t bytes = 0;
  for (const Width& width : widths_)
    bytes += width.values.bytes() + width.states.bytes() + width.free_rows.capacity() * sizeof(std::uint32_t);
  return bytes;
}

}  // namespace tessera::ps
