// Internal: batch norm over the samples of a micro-batch (Ioffe and Szegedy 2015), of this rank or of all replicas that the pass exchanges
// with.
#pragma once

#include <span>

#include "nn/parameter_row.hpp"

namespace tessera::nn {

class BatchNorm {
 public:
  // What is kept of a micro-batch, by place; kValues, where replicas exchange, is how many values of a channel all of them have. The input
  // half of the backward pass leaves the gradients of weight and bias in place of mean and inverse deviation, and nothing of the input.
  enum Kept { kInput, kMean, kInverseDeviation, kShown, kValues, kKeptCount };

  // Weight, bias, and the running mean and variance, which are buffers.
  void bind(ParameterRow& parameters) { parameters_ = parameters.take(4); }

  // maps [samples, channels, ...]. A pass that neither trains nor drops is by the running statistics.
  at::Tensor forward(const at::Tensor& maps, std::span<at::Tensor> kept, const Pass& pass) const;
  at::Tensor backward_input(const at::Tensor& grad, std::span<at::Tensor> kept, const Pass& pass) const;
  // To the gradients of the running statistics goes what this pass showed of them, weighted by its samples.
  void backward_weight(std::span<at::Tensor> kept, const Pass& pass) const;

 private:
  // Statistics of 16-bit maps are in f32 where the parameters are.
  at::Tensor value(std::size_t place) const;
  at::Tensor forward_over_replicas(const at::Tensor& maps, std::span<at::Tensor> kept, const Pass& pass) const;
  at::Tensor backward_over_replicas(const at::Tensor& grad, std::span<at::Tensor> kept, const Pass& pass) const;

  std::span<const Parameter> parameters_;
};

}  // namespace tessera::nn
