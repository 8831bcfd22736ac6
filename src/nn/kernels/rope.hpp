// Rotary position embedding in Hugging Face Llama's convention: dimension i pairs with i + head_dim/2 (rotate_half).
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>

namespace tessera::nn::kernels {

// cos and sin of position * theta^(-2i/head_dim): f32 [2, positions, head_dim/2].
at::Tensor rope_table(std::int64_t positions, std::int64_t head_dim, double theta);

// Rotates the first `heads` heads of each row of x [batch*seq, >= heads*head_dim] in place; row r stands at position
// `position` + r % seq. `inverse` turns back, which is also the gradient.
void rope(at::Tensor& x, std::int64_t heads, std::int64_t head_dim, std::int64_t seq, std::int64_t position, const at::Tensor& table,
          bool inverse);

}  // namespace tessera::nn::kernels
