#include "nn/norm.hpp"

#include <ATen/ops/empty_like.h>

#include "nn/kernels/layer_norm.hpp"
#include "nn/kernels/norm.hpp"

namespace tessera::nn {

Norm::Norm(const model::BlockSpec& spec)
    : hidden_(spec.dim("hidden")),
      layer_norm_(has(spec, "layer_norm")),
      biased_(layer_norm_ && has(spec, "biases")),
      epsilon_(spec.real("norm_eps")) {}

void Norm::bind(ParameterRow& parameters) { parameters_ = parameters.take(biased_ ? 2 : 1); }

at::Tensor Norm::bias() const { return biased_ ? parameters_[1].value : at::Tensor(); }

at::Tensor Norm::empty_statistics(const Rows& rows) const {
  return layer_norm_ ? at::empty({rows.own(), 2}, rows.f32()) : at::empty({rows.own()}, rows.f32());
}

void Norm::forward(const at::Tensor& x, at::Tensor& y, at::Tensor& statistics) const {
  if (layer_norm_)
    kernels::layer_norm(x, parameters_[0].value, bias(), epsilon_, y, statistics);
  else
    kernels::rms_norm(x, parameters_[0].value, epsilon_, y, statistics);
}

void Norm::forward_sum(at::Tensor& sum, const at::Tensor& x, at::Tensor& y, at::Tensor& statistics) const {
  if (layer_norm_)
    kernels::add_layer_norm(sum, x, parameters_[0].value, bias(), epsilon_, y, statistics);
  else
    kernels::add_rms_norm(sum, x, parameters_[0].value, epsilon_, y, statistics);
}

PendingExchange Norm::again(const at::Tensor& x, const at::Tensor& statistics, const Pass& pass) const {
  at::Tensor normed = at::empty_like(x);
  if (layer_norm_)
    kernels::layer_norm_again(x, parameters_[0].value, bias(), statistics, normed);
  else
    kernels::rms_norm_again(x, parameters_[0].value, statistics, normed);
  return PendingExchange::all_rows(std::move(normed), pass);
}

void Norm::backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& residual, at::Tensor& dx,
                    const at::Tensor& grads) const {
  if (!layer_norm_) {
    at::Tensor weight_grad = grads;
    kernels::rms_norm_backward(dy, x, parameters_[0].value, statistics, residual, dx, weight_grad);
    return;
  }
  at::Tensor both = biased_ ? grads : at::empty({2 * hidden_}, grads.options());
  kernels::layer_norm_backward(dy, x, parameters_[0].value, statistics, residual, dx, both);
  if (!biased_) at::Tensor(grads).copy_(both.narrow(0, 0, hidden_));
}

void Norm::add_grads(const at::Tensor& grads) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].grad.add_(grads.narrow(0, static_cast<std::int64_t>(i) * hidden_, hidden_));
}

}  // namespace tessera::nn
