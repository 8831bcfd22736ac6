// Internal. Elementwise reductions on plain memory, vectorised, in a fixed order; 16-bit floats are added in f32.
#pragma once

#include <cstddef>
#include <span>

#include "comm/comm.hpp"

namespace tessera::comm {

// out[i] = a[i] (op) b[i]. `out` may be `a` or `b`, but no other overlap.
void reduce_pair(void* out, const void* a, const void* b, std::size_t count, DataType type, Reduction reduction);

// out[i] = sources[0][i] (op) sources[1][i] (op) ... from left to right; bf16 is rounded once, at the end. `out` may be one
// of the sources, but no other overlap. At least one source.
void reduce_all(void* out, std::span<const void* const> sources, std::size_t count, DataType type, Reduction reduction);

}  // namespace tessera::comm
