// Internal: the norm that a block's dimensions ask for: RMSNorm, or with "layer_norm" LayerNorm, which has a bias where there are "biases".
// Every rank holds its parameters. Under sequence parallelism it has their gradients from its own rows alone.
#pragma once

#include "nn/parameter_row.hpp"
#include "nn/tensor_parallel.hpp"

namespace tessera::nn {

// Tensors are rows [own, hidden] and their statistics, f32, which the forward pass writes and the backward pass reads.
class Norm {
 public:
  explicit Norm(const model::BlockSpec& spec);
  void bind(ParameterRow& parameters);

  at::Tensor empty_statistics(const Rows& rows) const;
  void forward(const at::Tensor& x, at::Tensor& y, at::Tensor& statistics) const;
  // sum += x, then y = norm(sum).
  void forward_sum(at::Tensor& sum, const at::Tensor& x, at::Tensor& y, at::Tensor& statistics) const;
  // All rows of the forward pass's y.
  PendingExchange again(const at::Tensor& x, const at::Tensor& statistics, const Pass& pass) const;
  // dx = d(loss)/dx + residual, `grads` [grad_count()] f32 those of the parameters (overwritten). `residual` may be undefined; dx may be dy
  // or residual.
  void backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics, const at::Tensor& residual, at::Tensor& dx,
                const at::Tensor& grads) const;
  std::int64_t grad_count() const { return (biased_ ? 2 : 1) * hidden_; }
  // Adds them to the parameters'.
  void add_grads(const at::Tensor& grads) const;

 private:
  at::Tensor bias() const;

  std::int64_t hidden_;
  bool layer_norm_, biased_;
  double epsilon_;
  std::span<const Parameter> parameters_;  // weight and, where there is one, bias
};

}  // namespace tessera::nn
