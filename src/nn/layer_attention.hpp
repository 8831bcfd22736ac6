// Internal: the first half of a decoder layer, attention over its normalized input.
#pragma once

#include <span>
#include <vector>

#include "nn/context_parallel.hpp"
#include "nn/kernels/rope.hpp"
#include "nn/linear.hpp"
#include "nn/tensor_parallel.hpp"

namespace tessera::nn {

// Takes parameters off the front of those of a block.
class ParameterRow {
 public:
  explicit ParameterRow(std::span<const Parameter> parameters) : rest_(parameters) {}
  std::span<const Parameter> take(std::size_t count);
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const Parameter> rest_;
};

class LayerAttention {
 public:
  // What is kept of a micro-batch, by place. After the forward pass all but kOutputGrad; kAttended and kLse are undefined where attention
  // is computed again. The input half of the backward pass turns kQkv into its gradient and kLse into nothing.
  enum Kept { kInput, kInputRstd, kQkv, kAttended, kLse, kOutputGrad, kKeptCount };

  LayerAttention(const model::BlockSpec& spec, const BlockPlacement& placement);
  void bind(ParameterRow& parameters);

  // x: this rank's rows [own, hidden]. Returns what the layer adds to them.
  at::Tensor forward(const at::Tensor& x, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass);
  // Of the gradient of the sum of both, this rank's rows: that of x. `norm_grad` [hidden] and `head_norm_grads` [head_norm_count()],
  // f32, are written with the gradients of the norms' weights, from this rank's rows and heads.
  at::Tensor backward_input(const at::Tensor& grad, const Rows& rows, std::span<at::Tensor> kept, at::Tensor norm_grad,
                            at::Tensor head_norm_grads, const Pass& pass);
  // The weight half in two steps: of the map that its output comes from, and then of those that read the normalized input.
  void backward_last_weights(std::span<at::Tensor> kept) const;
  PendingExchange normed_input(std::span<at::Tensor> kept, const Pass& pass) const;
  void backward_first_weights(PendingExchange normed, std::span<at::Tensor> kept, const Pass& pass) const;

  const Parameter& norm() const { return *norm_; }
  std::span<const Parameter> head_norms() const { return head_norms_; }  // of the queries and of the keys, or none
  std::int64_t head_norm_count() const { return normalizes_heads_ ? 2 * head_dim_ : 0; }

 private:
  kernels::AttentionShape shape_of(const Rows& rows, const Pass& pass) const;
  at::Tensor turn(const at::Tensor& qkv, const Rows& rows, const Pass& pass) const;
  at::Tensor positions_of(const Rows& rows, const Pass& pass) const;
  void grow_rope_table(std::int64_t positions);

  std::int64_t hidden_, heads_, kv_heads_, head_dim_, window_;
  bool biased_, normalizes_heads_;
  double epsilon_;
  kernels::RopeFrequencies frequencies_;
  at::Tensor rope_table_;
  const Parameter* norm_ = nullptr;
  std::span<const Parameter> head_norms_;
  StackedLinear qkv_, output_;
};

// All rows of a normalized input of the forward pass.
PendingExchange normed_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd, const Pass& pass);

}  // namespace tessera::nn
