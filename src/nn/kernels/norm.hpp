// RMSNorm (Zhang and Sennrich 2019) over rows, statistics in f32. Tensors are contiguous; x, y and gradients share one
// dtype (f32 or bf16), also the weight's. Parallel over rows; sums have one order whatever the thread count.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>

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

// Heads beside each other in each row: queries, keys, values.
struct HeadShape {
  std::int64_t heads;  // of queries
  std::int64_t kv_heads;
  std::int64_t head_dim;
};

// y = qkv with each head of the queries normalized by query_weight [head_dim] and each of the keys by key_weight; values are copied.
void rms_norm_heads(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& query_weight, const at::Tensor& key_weight,
                    double epsilon, at::Tensor& y);

// The gradient of y becomes that of qkv; weight_grads f32 [2, head_dim], the queries' and the keys', are overwritten. The statistics are
// computed again.
void rms_norm_heads_backward(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& query_weight, const at::Tensor& key_weight,
                             double epsilon, at::Tensor& grad, at::Tensor& weight_grads);

}  // namespace tessera::nn::kernels
