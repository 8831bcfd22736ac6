#include "nn/layer_attention.hpp"

#include <ATen/ops/empty_like.h>

#include "nn/kernels/norm.hpp"
#include "nn/sequence.hpp"

namespace tessera::nn {
namespace {

kernels::RopeFrequencies rope_frequencies(const model::BlockSpec& spec) {
  if (!spec.dims.contains("rope_factor")) return {.theta = spec.real("rope_theta")};
  return {spec.real("rope_theta"), spec.real("rope_factor"), spec.real("rope_low_freq"), spec.real("rope_high_freq"),
          spec.real("rope_original_seq")};
}

}  // namespace

std::span<const Parameter> ParameterRow::take(std::size_t count) {
  ensure(rest_.size() >= count, "a layer lacks parameters that its dimensions ask for");
  const auto taken = rest_.first(count);
  rest_ = rest_.subspan(count);
  return taken;
}

LayerAttention::LayerAttention(const model::BlockSpec& spec, const BlockPlacement& placement)
    : hidden_(spec.dim("hidden")),
      heads_(divided(spec, "heads", placement.tensor_size)),
      kv_heads_(divided(spec, "kv_heads", placement.tensor_size)),
      head_dim_(spec.dim("head_dim")),
      window_(spec.dims.contains("window") ? spec.dim("window") : 0),
      biased_(spec.dims.contains("qkv_bias")),
      normalizes_heads_(spec.dims.contains("qk_norm")),
      epsilon_(spec.real("norm_eps")),
      frequencies_(rope_frequencies(spec)),
      rope_table_(kernels::rope_table(spec.dim("seq"), head_dim_, frequencies_)) {}

void LayerAttention::bind(ParameterRow& parameters) {
  norm_ = parameters.take(1).data();
  const auto weights = parameters.take(3);
  qkv_.bind(weights, parameters.take(biased_ ? 3 : 0));
  output_.bind(parameters.take(1));
  head_norms_ = parameters.take(normalizes_heads_ ? 2 : 0);
}

at::Tensor LayerAttention::forward(const at::Tensor& x, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) {
  at::Tensor normed = rows.empty_own(hidden_);
  at::Tensor rstd = rows.statistic();
  kernels::rms_norm(x, norm_->value, epsilon_, normed, rstd);
  at::Tensor qkv = rows.empty(qkv_.out_width());
  qkv_.forward(all_rows(normed, pass), qkv);
  normed.reset();
  grow_rope_table(pass.position + rows.seq);
  at::Tensor turned = turn(qkv, rows, pass);
  if (!pass.training) qkv.reset();

  const kernels::AttentionShape shape = shape_of(rows, pass);
  at::Tensor attended = rows.empty(heads_ * head_dim_);
  at::Tensor lse;
  if (pass.cache != nullptr) {
    kernels::attention_with_cache(turned, shape, pass.position, pass.cache->keys, pass.cache->values, attended);
  } else {
    lse = at::empty(lse_sizes(shape, pass), at::kFloat);
    attention(turned, shape, pass, attended, lse);
  }
  turned.reset();
  if (pass.recompute_attention) lse.reset();

  at::Tensor partial = rows.empty(hidden_);
  output_.forward(attended, partial);
  if (pass.training) {
    kept[kInput] = x;
    kept[kInputRstd] = std::move(rstd);
    kept[kQkv] = std::move(qkv);
    if (!pass.recompute_attention) kept[kAttended] = std::move(attended);
    kept[kLse] = std::move(lse);
  }
  attended.reset();
  return own_sum(std::move(partial), pass);
}

at::Tensor LayerAttention::backward_input(const at::Tensor& grad, const Rows& rows, std::span<at::Tensor> kept, at::Tensor norm_grad,
                                          at::Tensor head_norm_grads, const Pass& pass) {
  kept[kOutputGrad] = all_rows(grad, pass);
  at::Tensor attended_grad = rows.empty(heads_ * head_dim_);
  output_.backward_input(kept[kOutputGrad], attended_grad);
  at::Tensor turned = normalizes_heads_ ? turn(kept[kQkv], rows, pass) : kept[kQkv];
  const kernels::AttentionShape shape = shape_of(rows, pass);
  if (!kept[kAttended].defined()) {
    kept[kAttended] = rows.empty(heads_ * head_dim_);
    kept[kLse] = at::empty(lse_sizes(shape, pass), at::kFloat);
    attention(turned, shape, pass, kept[kAttended], kept[kLse]);
  }
  attention_backward(attended_grad, kept[kAttended], kept[kLse], shape, pass, turned);
  attended_grad.reset();
  kept[kLse].reset();
  kernels::rope(turned, heads_ + kv_heads_, head_dim_, rows.seq, pass.position, rope_table_, true, positions_of(rows, pass));
  if (normalizes_heads_) {
    at::Tensor weight_grads = head_norm_grads.view({2, head_dim_});
    kernels::rms_norm_heads_backward(kept[kQkv], {heads_, kv_heads_, head_dim_}, head_norms_[0].value, head_norms_[1].value, epsilon_,
                                     turned, weight_grads);
    kept[kQkv] = std::move(turned);
  }
  at::Tensor partial = rows.empty(hidden_);
  qkv_.backward_input(kept[kQkv], partial);
  at::Tensor input_grad = own_sum(std::move(partial), pass);
  kernels::rms_norm_backward(input_grad, kept[kInput], norm_->value, kept[kInputRstd], grad, input_grad, norm_grad);
  return input_grad;
}

void LayerAttention::backward_last_weights(std::span<at::Tensor> kept) const {
  output_.backward_weight(kept[kOutputGrad], kept[kAttended]);
  kept[kOutputGrad].reset();
  kept[kAttended].reset();
}

PendingExchange LayerAttention::normed_input(std::span<at::Tensor> kept, const Pass& pass) const {
  return normed_again(kept[kInput], norm_->value, kept[kInputRstd], pass);
}

void LayerAttention::backward_first_weights(PendingExchange normed, std::span<at::Tensor> kept, const Pass& pass) const {
  qkv_.backward_weight(kept[kQkv], normed.finish(pass));
  for (at::Tensor& tensor : kept) tensor.reset();
}

kernels::AttentionShape LayerAttention::shape_of(const Rows& rows, const Pass& pass) const {
  const at::Tensor positions = pass.batch->find(pass.context_group ? "whole_positions" : "positions");
  return {rows.batch, rows.seq, heads_, kv_heads_, head_dim_, window_, kernels::document_segments(positions)};
}

// Of each row, i64; undefined where they are those of whole sequences, in order.
at::Tensor LayerAttention::positions_of(const Rows& rows, const Pass& pass) const {
  if (const at::Tensor positions = pass.batch->find("positions"); positions.defined() || !pass.context_group) return positions;
  const SequenceCut cut = sequence_cut(pass);
  return cut.positions(rows.seq * cut.size).repeat({rows.batch, 1});
}

// Queries, keys and values as the attention reads them: rotated in place or, where heads are normalized, both in a new tensor.
at::Tensor LayerAttention::turn(const at::Tensor& qkv, const Rows& rows, const Pass& pass) const {
  at::Tensor turned = qkv;
  if (normalizes_heads_) {
    turned = rows.empty(qkv_.out_width());
    kernels::rms_norm_heads(qkv, {heads_, kv_heads_, head_dim_}, head_norms_[0].value, head_norms_[1].value, epsilon_, turned);
  }
  kernels::rope(turned, heads_ + kv_heads_, head_dim_, rows.seq, pass.position, rope_table_, false, positions_of(rows, pass));
  return turned;
}

void LayerAttention::grow_rope_table(std::int64_t positions) {
  if (positions > rope_table_.size(1)) rope_table_ = kernels::rope_table(2 * positions, head_dim_, frequencies_);
}

PendingExchange normed_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd, const Pass& pass) {
  at::Tensor normed = at::empty_like(x);
  kernels::rms_norm_again(x, weight, rstd, normed);
  return PendingExchange::all_rows(std::move(normed), pass);
}

}  // namespace tessera::nn
