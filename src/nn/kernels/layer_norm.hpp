// LayerNorm (Ba, Kiros, Hinton 2016) over rows, statistics in f32. Tensors are contiguous; x, y and gradients share one dtype (f32 or
// bf16), also the parameters'. `bias` may be undefined. Parallel over rows; sums have one order whatever the thread count.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>

namespace tessera::nn::kernels {

// y [rows, width] = (x - mean) * rstd * weight + bias; statistics f32 [rows, 2]: mean and rstd = 1 / sqrt(variance + epsilon) of each row.
void layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon, at::Tensor& y,
                at::Tensor& statistics);

// sum += x (elements, the residual stream), then y = layer_norm(sum).
void add_layer_norm(at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon, at::Tensor& y,
                    at::Tensor& statistics);

// y with statistics known from the forward pass.
void layer_norm_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& statistics, at::Tensor& y);

// dx = d(loss)/dx + residual, parameter_grads f32 [2, width] = d(loss)/d(weight) and d(loss)/d(bias) (overwritten). `residual` may be
// undefined; dx may be dy or residual.
void layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& statistics,
                         const at::Tensor& residual, at::Tensor& dx, at::Tensor& parameter_grads);

}  // namespace tessera::nn::kernels
