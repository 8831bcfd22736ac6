// Internal: matrices in FP8 with a scale for each block, as DeepSeek-V3 is published (DeepSeek-AI 2024, section 3.3.2).
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <vector>

namespace tessera::checkpoint {

// The scales that a matrix of this shape has: one for each block of model::kFp8Block rows and columns, also for those that its edges cut.
std::vector<std::int64_t> scales_shape(const std::vector<std::int64_t>& matrix);

// Multiplies `values` [rows, columns], f32, which hold what is stored, in place by the scales of their blocks, f32.
void multiply_blocks(const at::Tensor& values, const at::Tensor& scales);

}  // namespace tessera::checkpoint
