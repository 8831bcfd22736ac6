// Convolutions of maps, padded so that a stride of 1 leaves the side as it is.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn::kernels {

// maps [samples, in, height, width] with the channels of a pixel side by side, f32 or bf16; weight [out, in, side, side], contiguous, with
// an odd side; bias [out] or undefined: [samples, out, height', width'], laid out as the maps are.
at::Tensor convolve(const at::Tensor& maps, const at::Tensor& weight, const at::Tensor& bias, std::int64_t stride);
// The maps' gradient from that of the output; of the maps only their extents count.
at::Tensor convolve_backward_maps(const at::Tensor& grad, const at::Tensor& maps, const at::Tensor& weight, std::int64_t stride);
// weight_grad and, where it is defined, bias_grad [out], both f32, += what this output's gradient makes of them.
void convolve_backward_weight(const at::Tensor& grad, const at::Tensor& maps, const at::Tensor& weight_grad, const at::Tensor& bias_grad,
                              std::int64_t stride);

}  // namespace tessera::nn::kernels
