// RMSNorm (Zhang and Sennrich 2019) over rows, statistics in f32. Tensors are contiguous; x, y and gradients share one
// dtype (f32 or bf16), also the weight's. Parallel over rows; sums have one order whatever the thread count.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn::kernels {

// y [rows, width] = x * rstd * weight, rstd [rows] f32 = 1 / sqrt(mean(x^2) + epsilon).
void rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, at::Tensor& y, at::Tensor& rstd);

// sum += x (elements, the residual stream), then y = rms_norm(sum).
void add_rms_norm(at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight, double epsilon, at::Tensor& y, at::Tensor& rstd);

// y = x * rstd * weight, with statistics known from the forward pass.
void rms_norm_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd, at::Tensor& y);

// dx = d(loss)/dx + residual, weight_grad [width] f32 = d(loss)/d(weight) (overwritten). `residual` may be undefined; dx
// may be dy or residual.
void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                       const at::Tensor& residual, at::Tensor& dx, at::Tensor& weight_grad);

}  // namespace tessera::nn::kernels
