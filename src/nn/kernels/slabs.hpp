// Internal: sums over rows that have the same bits at any thread count: over fixed slabs of rows, and those in order.
#pragma once

#include <ATen/Parallel.h>
#include <algorithm>
#include <cstdint>
#include <vector>

namespace tessera::nn::kernels {

// Runs body(first row, rows, sums), in parallel over slabs: it adds to `width` sums, which begin at 0. What all slabs have found is added
// to `total`.
template <typename Body>
void add_by_slabs(std::int64_t rows, std::int64_t width, float* total, const Body& body) {
  constexpr std::int64_t kSlab = 128;
  const std::int64_t slabs = (rows + kSlab - 1) / kSlab;
  std::vector<float> partial(static_cast<std::size_t>(slabs * width), 0.0f);
  at::parallel_for(0, slabs, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t s = begin; s < end; ++s) body(s * kSlab, std::min(kSlab, rows - s * kSlab), partial.data() + s * width);
  });
  for (std::int64_t s = 0; s < slabs; ++s)
    for (std::int64_t i = 0; i < width; ++i) total[i] += partial[static_cast<std::size_t>(s * width + i)];
}

}  // namespace tessera::nn::kernels
