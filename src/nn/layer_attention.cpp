#include "nn/layer_attention.hpp"

#include "nn/dropout.hpp"
#include "nn/kernels/bias.hpp"
#include "nn/kernels/norm.hpp"
#include "nn/row_dropout.hpp"
#include "nn/sequence.hpp"

namespace tessera::nn {
namespace {

kernels::RopeFrequencies rope_frequencies(const model::BlockSpec& spec) {
  if (!spec.dims.contains("rope_factor")) return {.theta = spec.real("rope_theta")};
  return {spec.real("rope_theta"), spec.real("rope_factor"), spec.real("rope_low_freq"), spec.real("rope_high_freq"),
          spec.real("rope_original_seq")};
}

StackedLinear::Stored stored_maps(const model::BlockSpec& spec) {
  return has(spec, "maps_in_out") ? StackedLinear::Stored::in_out : StackedLinear::Stored::out_in;
}

}  // namespace

LayerAttention::LayerAttention(const model::BlockSpec& spec, const BlockPlacement& placement)
    : hidden_(spec.dim("hidden")),
      heads_(divided(spec, "heads", placement.tensor_size)),
      kv_heads_(divided(spec, "kv_heads", placement.tensor_size)),
      head_dim_(spec.dim("head_dim")),
      window_(spec.dims.contains("window") ? spec.dim("window") : 0),
      first_head_(placement.tensor_rank * heads_),
      map_count_(!has(spec, "maps_in_out") ? 3
                 : heads_ == kv_heads_     ? 1
                                           : 2),
      maps_biased_(has(spec, "qkv_bias") || has(spec, "biases")),
      output_biased_(has(spec, "biases")),
      normalizes_heads_(has(spec, "qk_norm")),
      rotates_(!spec.dims.contains("rotary") || has(spec, "rotary")),
      epsilon_(spec.real("norm_eps")),
      dropped_(dropped_share(spec)),
      norm_(spec),
      qkv_(stored_maps(spec)),
      output_(stored_maps(spec)) {
  if (!rotates_) return;
  frequencies_ = rope_frequencies(spec);
  rope_table_ = kernels::rope_table(spec.dim("seq"), head_dim_, frequencies_, placement.device);
}

void LayerAttention::bind(ParameterRow& parameters) {
  norm_.bind(parameters);
  const auto weights = parameters.take(map_count_);
  qkv_.bind(weights, parameters.take(maps_biased_ ? map_count_ : 0));
  output_.bind(parameters.take(1));
  output_bias_ = parameters.take(output_biased_ ? 1 : 0);
  head_norms_ = parameters.take(normalizes_heads_ ? 2 : 0);
}

at::Tensor LayerAttention::forward(const at::Tensor& x, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) {
  at::Tensor normed = rows.empty_own(hidden_);
  at::Tensor statistics = norm_.empty_statistics(rows);
  norm_.forward(x, normed, statistics);
  at::Tensor qkv = rows.empty(qkv_.out_width());
  qkv_.forward(all_rows(normed, pass), qkv);
  normed.reset();
  if (rotates_) grow_rope_table(pass.position + rows.seq);
  at::Tensor turned = turn(qkv, rows, pass);
  if (!pass.training) qkv.reset();

  const kernels::AttentionShape shape = shape_of(rows, pass);
  at::Tensor attended = rows.empty(heads_ * head_dim_);
  at::Tensor lse;
  if (pass.cache != nullptr) {
    kernels::attention_with_cache(turned, shape, pass.position, pass.cache->keys, pass.cache->values, attended);
  } else {
    lse = at::empty(lse_sizes(shape, pass), rows.f32());
    attention(turned, shape, dropout_of(rows, pass), pass, attended, lse);
  }
  turned.reset();
  if (pass.recompute_attention) lse.reset();

  if (pass.training) {
    kept[kInput] = x;
    kept[kInputStatistics] = std::move(statistics);
    kept[kQkv] = std::move(qkv);
    if (!pass.recompute_attention) kept[kAttended] = attended;
    kept[kLse] = std::move(lse);
  }
  at::Tensor added =
      own_sum_of(std::move(attended), hidden_, pass, [&](const at::Tensor& in, at::Tensor& out) { output_.forward(in, out); });
  for (const Parameter& bias : output_bias_) kernels::add_bias(added, bias.value);
  return added;
}

at::Tensor LayerAttention::backward_input(const at::Tensor& added_grad, const at::Tensor& sum_grad, const Rows& rows,
                                          std::span<at::Tensor> kept, const at::Tensor& norm_grads, const at::Tensor& head_norm_grads,
                                          const Pass& pass) {
  kept[kOutputGrad] = all_rows(added_grad, pass);
  at::Tensor attended_grad = rows.empty(heads_ * head_dim_);
  output_.backward_input(kept[kOutputGrad], attended_grad);
  at::Tensor turned = normalizes_heads_ ? turn(kept[kQkv], rows, pass) : kept[kQkv];
  const kernels::AttentionShape shape = shape_of(rows, pass);
  const ScoreDropout dropped = dropout_of(rows, pass);
  if (!kept[kAttended].defined()) {
    kept[kAttended] = rows.empty(heads_ * head_dim_);
    kept[kLse] = at::empty(lse_sizes(shape, pass), rows.f32());
    attention(turned, shape, dropped, pass, kept[kAttended], kept[kLse]);
  }
  attention_backward(attended_grad, kept[kAttended], kept[kLse], shape, dropped, pass, turned);
  attended_grad.reset();
  kept[kLse].reset();
  if (rotates_) kernels::rope(turned, heads_ + kv_heads_, head_dim_, rows.seq, pass.position, rope_table_, true, positions_of(rows, pass));
  if (normalizes_heads_) {
    at::Tensor weight_grads = head_norm_grads.view({2, head_dim_});
    kernels::rms_norm_heads_backward(kept[kQkv], {heads_, kv_heads_, head_dim_}, head_norms_[0].value, head_norms_[1].value, epsilon_,
                                     turned, weight_grads);
    kept[kQkv] = std::move(turned);
  }
  at::Tensor input_grad =
      own_sum_of(kept[kQkv], hidden_, pass, [&](const at::Tensor& in, at::Tensor& out) { qkv_.backward_input(in, out); });
  norm_.backward(input_grad, kept[kInput], kept[kInputStatistics], sum_grad, input_grad, norm_grads);
  return input_grad;
}

void LayerAttention::backward_last_weights(std::span<at::Tensor> kept) const {
  output_.backward_weight(kept[kOutputGrad], kept[kAttended]);
  // Every rank has all rows of this gradient, and holds the bias.
  for (const Parameter& bias : output_bias_) kernels::bias_backward(kept[kOutputGrad], bias.grad);
  kept[kOutputGrad].reset();
  kept[kAttended].reset();
}

void LayerAttention::backward_first_weights(PendingExchange normed, std::span<at::Tensor> kept, const Pass& pass) const {
  qkv_.backward_weight(kept[kQkv], normed.finish(pass));
  for (at::Tensor& tensor : kept) tensor.reset();
}

kernels::AttentionShape LayerAttention::shape_of(const Rows& rows, const Pass& pass) const {
  const at::Tensor positions = pass.batch->find(pass.context_group ? "whole_positions" : "positions");
  return {rows.batch, rows.seq, heads_, kv_heads_, head_dim_, window_, kernels::document_segments(positions)};
}

ScoreDropout LayerAttention::dropout_of(const Rows& rows, const Pass& pass) const {
  if (dropped_ == 0 || !pass.drops) return {};
  return {dropped_, sample_seeds(rows.batch, kScores, pass), first_head_};
}

// Of each row, i64; undefined where they are those of whole sequences, in order.
at::Tensor LayerAttention::positions_of(const Rows& rows, const Pass& pass) const {
  if (const at::Tensor positions = pass.batch->find("positions"); positions.defined() || !pass.context_group) return positions;
  const SequenceCut cut = sequence_cut(pass);
  return cut.positions(rows.seq * cut.size, rows.options.device()).repeat({rows.batch, 1});
}

// Queries, keys and values as the attention reads them: rotated in place or, where heads are normalized, both in a new tensor.
at::Tensor LayerAttention::turn(const at::Tensor& qkv, const Rows& rows, const Pass& pass) const {
  at::Tensor turned = qkv;
  if (normalizes_heads_) {
    turned = rows.empty(qkv_.out_width());
    kernels::rms_norm_heads(qkv, {heads_, kv_heads_, head_dim_}, head_norms_[0].value, head_norms_[1].value, epsilon_, turned);
  }
  if (rotates_) kernels::rope(turned, heads_ + kv_heads_, head_dim_, rows.seq, pass.position, rope_table_, false, positions_of(rows, pass));
  return turned;
}

void LayerAttention::grow_rope_table(std::int64_t positions) {
  if (positions > rope_table_.size(1)) rope_table_ = kernels::rope_table(2 * positions, head_dim_, frequencies_, rope_table_.device());
}

}  // namespace tessera::nn
