// Internal. A row's values as they are stored and as they cross the network: fp32, bf16, or int8 behind the row's scale.
#pragma once

#include <cstddef>
#include <span>

#include "base/random.hpp"
#include "ps/ps.hpp"

namespace tessera::ps {

void load_row(RowType type, const std::byte* stored, std::span<float> values);
// Rounds as RowType says; draws from `random` unless the type is fp32.
void store_row(RowType type, std::span<const float> values, Random& random, std::byte* stored);
// Rounds likewise, but leaves a NaN or an infinity in a row that has one.
void store_gradient(RowType type, std::span<const float> values, Random& random, std::byte* stored);
// Rounds to the nearest, for rows that are not stepped as they are stored.
void store_nearest(RowType type, std::span<const float> values, std::byte* stored);

}  // namespace tessera::ps
