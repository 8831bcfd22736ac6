// Internal: the first half of a decoder layer, attention over its normalized input.
#pragma once

#include <span>

#include "nn/context_parallel.hpp"
#include "nn/kernels/rope.hpp"
#include "nn/linear.hpp"
#include "nn/norm.hpp"

namespace tessera::nn {

class LayerAttention {
 public:
  // What is kept of a micro-batch, by place. After the forward pass all but kOutputGrad; kAttended and kLse are undefined where attention
  // is computed again. The input half of the backward pass turns kQkv into its gradient and kLse into nothing.
  enum Kept { kInput, kInputStatistics, kQkv, kAttended, kLse, kOutputGrad, kKeptCount };

  LayerAttention(const model::BlockSpec& spec, const BlockPlacement& placement);
  void bind(ParameterRow& parameters);

  // x: this rank's rows [own, hidden]. Returns what the layer adds to them.
  at::Tensor forward(const at::Tensor& x, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass);
  // Of the gradient of what the layer adds, and of that of the sum, this rank's rows: that of x. `norm_grads` [norm().grad_count()] and
  // `head_norm_grads` [head_norm_count()], f32, are written with the gradients of the norms' parameters, from this rank's rows and heads.
  at::Tensor backward_input(const at::Tensor& added_grad, const at::Tensor& sum_grad, const Rows& rows, std::span<at::Tensor> kept,
                            const at::Tensor& norm_grads, const at::Tensor& head_norm_grads, const Pass& pass);
  // The weight half in two steps: of the map that its output comes from, and then of those that read the normalized input.
  void backward_last_weights(std::span<at::Tensor> kept) const;
  PendingExchange normed_input(std::span<at::Tensor> kept, const Pass& pass) const {
    return norm_.again(kept[kInput], kept[kInputStatistics], pass);
  }
  void backward_first_weights(PendingExchange normed, std::span<at::Tensor> kept, const Pass& pass) const;

  const Norm& norm() const { return norm_; }
  std::span<const Parameter> head_norms() const { return head_norms_; }  // of the queries and of the keys, or none
  std::int64_t head_norm_count() const { return normalizes_heads_ ? 2 * head_dim_ : 0; }

 private:
  kernels::AttentionShape shape_of(const Rows& rows, const Pass& pass) const;
  ScoreDropout dropout_of(const Rows& rows, const Pass& pass) const;
  at::Tensor turn(const at::Tensor& qkv, const Rows& rows, const Pass& pass) const;
  at::Tensor positions_of(const Rows& rows, const Pass& pass) const;
  void grow_rope_table(std::int64_t positions);

  std::int64_t hidden_, heads_, kv_heads_, head_dim_, window_;
  std::int64_t first_head_;  // of this rank's
  std::size_t map_count_;    // of which queries, keys and values come
  bool maps_biased_, output_biased_, normalizes_heads_, rotates_;
  double epsilon_, dropped_;
  kernels::RopeFrequencies frequencies_;
  at::Tensor rope_table_;
  Norm norm_;
  std::span<const Parameter> head_norms_;
  StackedLinear qkv_, output_;
  std::span<const Parameter> output_bias_;  // one or none
};

}  // namespace tessera::nn
