#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>

#include "nn/kernels/aten/kernels.hpp"

namespace tessera::nn::kernels::aten {
namespace {

at::Tensor wide(const at::Tensor& tensor) { return tensor.to(at::kFloat); }

at::Tensor as_rows(const at::Tensor& tensor, const at::Tensor& weight) {
  return tensor.view({tensor.numel() / weight.numel(), weight.numel()});
}

// [..., 1] of x [..., width].
at::Tensor rstd_of(const at::Tensor& x, double epsilon) { return at::rsqrt(x.square().mean(-1, true).add_(epsilon)); }

// Of y = normed * weight, where normed is x * rstd and means are over the last dimension.
at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& normed, const at::Tensor& weight, const at::Tensor& rstd) {
  const at::Tensor scaled = dy * weight;
  return (scaled - normed * (scaled * normed).mean(-1, true)).mul_(rstd);
}

// Queries and keys of each row as [rows, heads + kv_heads, head_dim], a view.
at::Tensor normed_heads(const at::Tensor& qkv, const HeadShape& s) {
  const std::int64_t heads = s.heads + s.kv_heads;
  return qkv.narrow(1, 0, heads * s.head_dim).view({qkv.size(0), heads, s.head_dim});
}

// f32 [heads + kv_heads, head_dim].
at::Tensor weight_of_heads(const HeadShape& s, const at::Tensor& query_weight, const at::Tensor& key_weight) {
  return wide(at::cat({query_weight.expand({s.heads, s.head_dim}), key_weight.expand({s.kv_heads, s.head_dim})}));
}

}  // namespace

void rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, at::Tensor& y, at::Tensor& rstd) {
  const at::Tensor scale = rstd_of(wide(as_rows(x, weight)), epsilon);
  rstd.view({scale.size(0), 1}).copy_(scale);
  rms_norm_again(x, weight, rstd, y);
}

void add_rms_norm(at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight, double epsilon, at::Tensor& y, at::Tensor& rstd) {
  sum.add_(x);
  rms_norm(sum, weight, epsilon, y, rstd);
}

void rms_norm_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd, at::Tensor& y) {
  at::Tensor out = as_rows(y, weight);
  at::mul_out(out, wide(as_rows(x, weight)) * rstd.view({out.size(0), 1}), wide(weight));
}

void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                       const at::Tensor& residual, at::Tensor& dx, at::Tensor& weight_grad) {
  const at::Tensor grad = wide(as_rows(dy, weight));
  const at::Tensor scale = rstd.view({grad.size(0), 1});
  const at::Tensor normed = wide(as_rows(x, weight)) * scale;
  weight_grad.copy_((grad * normed).sum(0));
  at::Tensor out = input_gradient(grad, normed, wide(weight), scale);
  if (residual.defined()) out.add_(as_rows(residual, weight));
  as_rows(dx, weight).copy_(out);
}

void rms_norm_heads(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& query_weight, const at::Tensor& key_weight,
                    double epsilon, at::Tensor& y) {
  const at::Tensor x = wide(normed_heads(qkv, shape));
  at::Tensor out = normed_heads(y, shape);
  at::mul_out(out, x * rstd_of(x, epsilon), weight_of_heads(shape, query_weight, key_weight));
  const std::int64_t first_value = (shape.heads + shape.kv_heads) * shape.head_dim;
  y.narrow(1, first_value, y.size(1) - first_value).copy_(qkv.narrow(1, first_value, y.size(1) - first_value));
}

void rms_norm_heads_backward(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& query_weight, const at::Tensor& key_weight,
                             double epsilon, at::Tensor& grad, at::Tensor& weight_grads) {
  const at::Tensor x = wide(normed_heads(qkv, shape));
  const at::Tensor scale = rstd_of(x, epsilon);
  const at::Tensor normed = x * scale;
  const at::Tensor dy = normed_heads(grad, shape);
  const at::Tensor of_heads = (dy * normed).sum(0);
  weight_grads[0].copy_(of_heads.narrow(0, 0, shape.heads).sum(0));
  weight_grads[1].copy_(of_heads.narrow(0, shape.heads, shape.kv_heads).sum(0));
  dy.copy_(input_gradient(wide(dy), normed, weight_of_heads(shape, query_weight, key_weight), scale));
}

}  // namespace tessera::nn::kernels::aten
