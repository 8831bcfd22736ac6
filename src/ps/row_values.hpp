// Internal. A row's values as they are stored: fp32, bf16, or int8 behind the row's scale.
#pragma once

#include <cstddef>
#include <span>

#include "base/random.hpp"
#include "ps/ps.hpp"

namespace tessera::ps {

// Bytes of a row of so many values, a multiple of 4.
std::size_t row_bytes(RowType type, int dimension);

void load_row(RowType type, const std::byte* stored, std::span<float> values);
// Rounds as RowType says; draws from `random` unless the type is fp32.
void store_row(RowType type, std::span<const float> values, Random& random, std::byte* stored);
// Rounds to the nearest, for rows that are never stepped again.
void store_nearest(RowType type, std::span<const float> values, std::byte* stored);

}  // namespace tessera::ps
