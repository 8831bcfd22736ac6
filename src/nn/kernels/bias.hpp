// Biases of linear maps. y and dy are [rows, width] and may be column slices of wider rows; bias is [width] of y's dtype (f32 or bf16).
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn::kernels {

// y += bias in every row.
void add_bias(at::Tensor y, const at::Tensor& bias);

// bias_grad [width] f32 += the sum of dy's rows, in f32 and in one order whatever the thread count.
void bias_backward(const at::Tensor& dy, const at::Tensor& bias_grad);

}  // namespace tessera::nn::kernels
