// Internal: what stands in a language head before the projection to the vocabulary: a norm, or with "head_transform" a linear map, GELU and
// a norm (BERT). With
// "drops_normed" training drops what the norm makes, and "head_scale" multiplies it (T5).
#pragma once

#include <optional>
#include <span>

#include "nn/kernels/gelu.hpp"
#include "nn/linear.hpp"
#include "nn/norm.hpp"
#include "nn/row_dropout.hpp"

namespace tessera::nn {

// Tensors are this rank's rows [own, hidden].
class HeadInput {
 public:
  // What is kept of a micro-batch, by place. kMapped is defined where there is a map; the input half of the backward pass turns it into its
  // gradient, and adds kNormGrads.
  enum Kept { kInput, kStatistics, kMapped, kNormGrads, kKeptCount };

  explicit HeadInput(const model::BlockSpec& spec);
  void bind(ParameterRow& parameters);

  at::Tensor forward(const at::Tensor& x, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) const;
  // The gradient of x, from that of the output, which it may overwrite.
  at::Tensor backward_input(at::Tensor grad, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) const;
  void backward_weight(std::span<at::Tensor> kept, const Pass& pass) const;

 private:
  std::optional<StackedLinear> map_;
  kernels::GeluForm form_;
  Norm norm_;
  std::optional<RowDropout> drop_;
  double scale_;
};

}  // namespace tessera::nn
