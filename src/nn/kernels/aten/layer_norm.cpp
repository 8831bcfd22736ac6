#include "nn/kernels/layer_norm.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/rsqrt.h>

#include "nn/kernels/aten/kernels.hpp"

namespace tessera::nn::kernels::aten {
namespace {

// f32 [rows, width].
at::Tensor wide_rows(const at::Tensor& tensor, const at::Tensor& weight) {
  return tensor.view({tensor.numel() / weight.numel(), weight.numel()}).to(at::kFloat);
}

// Without weight and bias.
at::Tensor normed(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& statistics) {
  return (wide_rows(x, weight) - statistics.narrow(1, 0, 1)).mul_(statistics.narrow(1, 1, 1));
}

}  // namespace

void layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon, at::Tensor& y,
                at::Tensor& statistics) {
  const at::Tensor rows = wide_rows(x, weight);
  const at::Tensor mean = rows.mean(1, true);
  statistics.narrow(1, 0, 1).copy_(mean);
  statistics.narrow(1, 1, 1).copy_(at::rsqrt((rows - mean).square_().mean(1, true).add_(epsilon)));
  layer_norm_again(x, weight, bias, statistics, y);
}

void add_layer_norm(at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon, at::Tensor& y,
                    at::Tensor& statistics) {
  sum.add_(x);
  layer_norm(sum, weight, bias, epsilon, y, statistics);
}

void layer_norm_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& statistics, at::Tensor& y) {
  at::Tensor out = normed(x, weight, statistics).mul_(weight);
  if (bias.defined()) out.add_(bias);
  y.view(out.sizes()).copy_(out);
}

void layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& statistics,
                         const at::Tensor& residual, at::Tensor& dx, at::Tensor& parameter_grads) {
  const std::int64_t width = weight.numel();
  const at::Tensor grad = wide_rows(dy, weight);
  const at::Tensor xhat = normed(x, weight, statistics);
  parameter_grads.view({2, width})[0].copy_((grad * xhat).sum(0));
  parameter_grads.view({2, width})[1].copy_(grad.sum(0));
  const at::Tensor scaled = grad * weight;
  at::Tensor out = (scaled - scaled.mean(1, true)).sub_(xhat * (scaled * xhat).mean(1, true)).mul_(statistics.narrow(1, 1, 1));
  if (residual.defined()) out.add_(residual.view(out.sizes()));
  dx.view(out.sizes()).copy_(out);
}

}  // namespace tessera::nn::kernels::aten
