#include "nn/layer_attention.hpp"

#include <ATen/ops/constant_pad_nd.h>

#include "nn/dropout.hpp"
#include "nn/kernels/bias.hpp"
#include "nn/rotation.hpp"
#include "nn/row_dropout.hpp"

namespace tessera::nn {
LayerAttention::LayerAttention(const model::BlockSpec& spec, const BlockPlacement& placement)
    : hidden_(spec.dim("hidden")),
      heads_(divided(spec, "heads", placement.tensor_size)),
      kv_heads_(divided(spec, "kv_heads", placement.tensor_size)),
      head_dim_(spec.dim("head_dim")),
      v_dim_(has(spec, "v_dim") ? spec.dim("v_dim") : head_dim_),
      window_(spec.dims.contains("window") ? spec.dim("window") : 0),
      first_head_(placement.tensor_rank * heads_),
      output_biased_(has(spec, "biases")),
      causal_(!spec.dims.contains("causal") || has(spec, "causal")),
      dropped_(dropped_share(spec)),
      maps_(make_attention_maps(spec, placement)),
      output_(stored_maps(spec)) {
  if (!has(spec, "post_norm")) norm_.emplace(spec);
}

void LayerAttention::bind(ParameterRow& parameters) {
  if (norm_) norm_->bind(parameters);
  maps_->bind(parameters);
  output_.bind(parameters.take(1));
  output_bias_ = parameters.take(output_biased_ ? 1 : 0);
  maps_->bind_rest(parameters);
}

at::Tensor LayerAttention::forward(const at::Tensor& x, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) {
  at::Tensor mapped = x;
  at::Tensor statistics;
  if (norm_) {
    mapped = rows.empty_own(hidden_);
    statistics = norm_->empty_statistics(rows);
    norm_->forward(x, mapped, statistics);
  }
  at::Tensor turned = maps_->forward(all_rows(mapped, pass), rows, of_maps(kept), pass);
  mapped.reset();

  const kernels::AttentionShape shape = shape_of(rows, pass);
  at::Tensor attended = rows.empty(heads_ * head_dim_);
  at::Tensor lse;
  if (pass.cache != nullptr) {
    ensure(causal_, "attention to both sides has no cache of keys and values");
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
    if (!pass.recompute_attention) kept[kAttended] = attended;
    kept[kLse] = std::move(lse);
  }
  at::Tensor values = without_padding(std::move(attended));
  at::Tensor added = own_sum_of(std::move(values), hidden_, pass, [&](const at::Tensor& in, at::Tensor& out) { output_.forward(in, out); });
  for (const Parameter& bias : output_bias_) kernels::add_bias(added, bias.value);
  return added;
}

at::Tensor LayerAttention::backward_input(const at::Tensor& added_grad, const at::Tensor& sum_grad, const Rows& rows,
                                          std::span<at::Tensor> kept, const at::Tensor& norm_grads, const at::Tensor& shared_grads,
                                          const Pass& pass) {
  kept[kOutputGrad] = all_rows(added_grad, pass);
  at::Tensor attended_grad = rows.empty(heads_ * v_dim_);
  output_.backward_input(kept[kOutputGrad], attended_grad);
  attended_grad = with_padding(std::move(attended_grad));
  at::Tensor turned = maps_->again(rows, of_maps(kept), pass);
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
  kept[kAttended] = without_padding(std::move(kept[kAttended]));
  at::Tensor input_grad = maps_->backward_input(std::move(turned), rows, of_maps(kept), shared_grads, pass);
  if (norm_)
    norm_->backward(input_grad, kept[kInput], kept[kInputStatistics], sum_grad, input_grad, norm_grads);
  else
    input_grad.add_(sum_grad);
  return input_grad;
}

void LayerAttention::backward_last_weights(std::span<at::Tensor> kept) const {
  output_.backward_weight(kept[kOutputGrad], kept[kAttended]);
  // Every rank has all rows of this gradient, and holds the bias.
  for (const Parameter& bias : output_bias_) kernels::bias_backward(kept[kOutputGrad], bias.grad);
  kept[kOutputGrad].reset();
  kept[kAttended].reset();
}

PendingExchange LayerAttention::mapped_input(std::span<at::Tensor> kept, const Pass& pass) const {
  if (!maps_->reads_input_again()) return {};
  return norm_ ? norm_->again(kept[kInput], kept[kInputStatistics], pass) : PendingExchange::all_rows(kept[kInput], pass);
}

void LayerAttention::backward_first_weights(PendingExchange input, std::span<at::Tensor> kept, const Pass& pass) const {
  maps_->backward_weight(input.finish(pass), of_maps(kept));
  for (at::Tensor& tensor : kept) tensor.reset();
}

// [rows, heads * head_dim] -> [rows, heads * v_dim], and back.
at::Tensor LayerAttention::without_padding(at::Tensor attended) const {
  if (v_dim_ == head_dim_) return attended;
  return attended.view({-1, heads_, head_dim_}).narrow(2, 0, v_dim_).reshape({-1, heads_ * v_dim_});
}

at::Tensor LayerAttention::with_padding(at::Tensor attended) const {
  if (v_dim_ == head_dim_) return attended;
  return at::constant_pad_nd(attended.view({-1, heads_, v_dim_}), {0, head_dim_ - v_dim_}).view({-1, heads_ * head_dim_});
}

kernels::AttentionShape LayerAttention::shape_of(const Rows& rows, const Pass& pass) const {
  const at::Tensor positions = pass.batch->find(pass.context_group ? "whole_positions" : "positions");
  return {rows.batch, rows.seq, heads_, kv_heads_, head_dim_, window_, kernels::document_segments(positions), causal_};
}

ScoreDropout LayerAttention::dropout_of(const Rows& rows, const Pass& pass) const {
  if (dropped_ == 0 || !pass.drops) return {};
  return {dropped_, sample_seeds(rows.batch, kScores, pass), first_head_};
}

}  // namespace tessera::nn
