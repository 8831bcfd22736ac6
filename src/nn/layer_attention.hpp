// Internal: the first half of a transformer layer, attention over its normalized input or, with "post_norm", its input as it is. Causal but
// where "causal" is 0.
#pragma once

#include <optional>
#include <span>

#include "nn/attention_maps.hpp"
#include "nn/context_parallel.hpp"
#include "nn/linear.hpp"
#include "nn/norm.hpp"

namespace tessera::nn {

class LayerAttention {
 public:
  // What is kept of a micro-batch, by place, and from kMaps on what the maps keep. After the forward pass all but kOutputGrad; kAttended
  // and kLse are undefined where attention is computed again, kInputStatistics where there is no norm. The input half of the backward pass
  // turns kLse into nothing.
  enum Kept { kInput, kInputStatistics, kAttended, kLse, kOutputGrad, kMaps, kKeptCount = kMaps + AttentionMaps::kKeptCount };

  LayerAttention(const model::BlockSpec& spec, const BlockPlacement& placement);
  void bind(ParameterRow& parameters);

  // x: this rank's rows [own, hidden]. Returns what the layer adds to them.
  at::Tensor forward(const at::Tensor& x, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass);
  // Of the gradient of what the layer adds, and of that of the sum, this rank's rows: that of x. `norm_grads` [norm().grad_count()], or
  // undefined without a norm, and `shared_grads` [maps().shared_count()], f32, are written with those of the norm and of the maps' shared
  // parameters, from this rank's rows and heads.
  at::Tensor backward_input(const at::Tensor& added_grad, const at::Tensor& sum_grad, const Rows& rows, std::span<at::Tensor> kept,
                            const at::Tensor& norm_grads, const at::Tensor& shared_grads, const Pass& pass);
  // The weight half in two steps: of the map that its output comes from, and then of those that read the input.
  void backward_last_weights(std::span<at::Tensor> kept) const;
  PendingExchange mapped_input(std::span<at::Tensor> kept, const Pass& pass) const;
  void backward_first_weights(PendingExchange input, std::span<at::Tensor> kept, const Pass& pass) const;

  const Norm& norm() const { return *norm_; }
  const AttentionMaps& maps() const { return *maps_; }

 private:
  static std::span<at::Tensor> of_maps(std::span<at::Tensor> kept) { return kept.subspan(kMaps); }
  kernels::AttentionShape shape_of(const Rows& rows, const Pass& pass) const;
  ScoreDropout dropout_of(const Rows& rows, const Pass& pass) const;
  at::Tensor without_padding(at::Tensor attended) const;
  at::Tensor with_padding(at::Tensor attended) const;

  std::int64_t hidden_, heads_, kv_heads_, head_dim_, v_dim_, window_;
  std::int64_t first_head_;  // of this rank's
  bool output_biased_, causal_;
  double dropped_;
  std::optional<Norm> norm_;
  std::unique_ptr<AttentionMaps> maps_;
  StackedLinear output_;
  std::span<const Parameter> output_bias_;  // one or none
};

}  // namespace tessera::nn
