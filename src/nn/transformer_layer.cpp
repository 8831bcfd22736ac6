#include "nn/transformer_layer.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "nn/kernels/attention.hpp"
#include "nn/kernels/norm.hpp"
#include "nn/kernels/rope.hpp"
#include "nn/kernels/swiglu.hpp"
#include "nn/linear.hpp"
#include "nn/tensor_parallel.hpp"

namespace tessera::nn {
namespace {

// What is kept, by place in Saved::tensors. After the forward pass, kAttended and kLse undefined where attention is computed again:
enum Kept { kInput, kInputRstd, kQkv, kAttended, kLse, kMiddle, kMiddleRstd, kGateUp, kKeptCount };
// The input half of the backward pass turns kQkv and kGateUp into their gradients, drops kLse and adds these for the
// weight half:
enum KeptForWeights {
  kOutputGrad = kKeptCount,  // of all rows
  kFeedForward,
  kMiddleGrad,  // of all rows
  kNormGrads,   // of the norms' weights in one row: the input's, the middle's and, where heads are normalized, the queries' and the keys'
  kKeptForWeightsCount
};

kernels::RopeFrequencies rope_frequencies(const model::BlockSpec& spec) {
  if (!spec.dims.contains("rope_factor")) return {.theta = spec.real("rope_theta")};
  return {spec.real("rope_theta"), spec.real("rope_factor"), spec.real("rope_low_freq"), spec.real("rope_high_freq"),
          spec.real("rope_original_seq")};
}

class TransformerLayer final : public Block {
 public:
  TransformerLayer(const model::BlockSpec& spec, const BlockPlacement& placement)
      : hidden_(spec.dim("hidden")),
        heads_(divided(spec, "heads", placement.tensor_size)),
        kv_heads_(divided(spec, "kv_heads", placement.tensor_size)),
        head_dim_(spec.dim("head_dim")),
        // Padding needs no care: zeros in the weights make zeros in the hidden vector and in every gradient of it.
        ffn_(model::shard_extent(spec.dim("ffn"), placement.tensor_size)),
        window_(spec.dims.contains("window") ? spec.dim("window") : 0),
        biased_(spec.dims.contains("qkv_bias")),
        normalizes_heads_(spec.dims.contains("qk_norm")),
        epsilon_(spec.real("norm_eps")),
        frequencies_(rope_frequencies(spec)),
        rope_table_(kernels::rope_table(spec.dim("seq"), head_dim_, frequencies_)) {}

  void bind(std::vector<Parameter> parameters) override {
    parameters_ = std::move(parameters);
    std::span<const Parameter> rest(parameters_);
    const auto take = [&](std::size_t count) {
      ensure(rest.size() >= count, "a transformer layer lacks parameters that its dimensions ask for");
      const auto taken = rest.first(count);
      rest = rest.subspan(count);
      return taken;
    };
    input_norm_ = take(1).data();
    const auto weights = take(3);
    qkv_.bind(weights, take(biased_ ? 3 : 0));
    output_.bind(take(1));
    head_norms_ = take(normalizes_heads_ ? 2 : 0);
    middle_norm_ = take(1).data();
    gate_up_.bind(take(2));
    down_.bind(take(1));
    ensure(rest.empty(), "a transformer layer has parameters that its dimensions do not ask for");
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }

  Tensors forward(const Tensors& inputs, Saved& saved, const Pass& pass) override {
    const at::Tensor& input = inputs.at(0);
    const Rows rows(input, pass);
    const at::Tensor x = input.view({rows.own(), hidden_});

    at::Tensor normed = rows.empty_own(hidden_);
    at::Tensor input_rstd = rows.statistic();
    kernels::rms_norm(x, input_norm_->value, epsilon_, normed, input_rstd);
    at::Tensor qkv = rows.empty(qkv_.out_width());
    qkv_.forward(all_rows(normed, pass), qkv);
    grow_rope_table(pass.position + rows.seq);
    at::Tensor turned = turn(qkv, rows, pass);
    if (!pass.training) qkv.reset();

    const kernels::AttentionShape shape = attention_shape(rows, pass);
    at::Tensor attended = rows.empty(heads_ * head_dim_);
    at::Tensor lse;
    if (pass.cache != nullptr) {
      kernels::attention_with_cache(turned, shape, pass.position, pass.cache->keys, pass.cache->values, attended);
    } else {
      lse = empty_lse(rows);
      kernels::attention(turned, shape, attended, lse);
    }
    turned.reset();
    if (pass.recompute_attention) lse.reset();

    at::Tensor partial = rows.empty(hidden_);
    output_.forward(attended, partial);
    if (!pass.training || pass.recompute_attention) attended.reset();
    at::Tensor middle = own_sum(std::move(partial), pass);
    at::Tensor middle_rstd = rows.statistic();
    kernels::add_rms_norm(middle, x, middle_norm_->value, epsilon_, normed, middle_rstd);

    at::Tensor gate_up = rows.empty(2 * ffn_);
    gate_up_.forward(all_rows(normed, pass), gate_up);
    normed.reset();
    at::Tensor feed_forward = rows.empty(ffn_);
    kernels::swiglu(gate_up, feed_forward);
    if (!pass.training) gate_up.reset();
    partial = rows.empty(hidden_);
    down_.forward(feed_forward, partial);
    at::Tensor out = own_sum(std::move(partial), pass);
    out.add_(middle);

    saved.tensors.clear();
    if (pass.training) saved.tensors = {x, input_rstd, qkv, attended, lse, middle, middle_rstd, gate_up};
    return {out.view(input.sizes())};
  }

  Tensors backward_input(const Tensors& output_grads, Saved& saved, const Pass& pass) override {
    Tensors& kept = saved.tensors;
    ensure(kept.size() == kKeptCount, "backward_input without a training forward");
    kept.resize(kKeptForWeightsCount);
    const at::Tensor& output_grad = output_grads.at(0);
    const Rows rows(output_grad, pass);
    const at::Tensor dy = output_grad.view({rows.own(), hidden_});
    kept[kOutputGrad] = all_rows(dy, pass);
    kept[kNormGrads] = at::empty({2 * hidden_ + (normalizes_heads_ ? 2 * head_dim_ : 0)}, at::kFloat);
    at::Tensor input_norm_grad = kept[kNormGrads].narrow(0, 0, hidden_);
    at::Tensor middle_norm_grad = kept[kNormGrads].narrow(0, hidden_, hidden_);

    kept[kFeedForward] = rows.empty(ffn_);
    down_.backward_input(kept[kOutputGrad], kept[kFeedForward]);
    kernels::swiglu_backward(kept[kGateUp], kept[kFeedForward]);
    at::Tensor partial = rows.empty(hidden_);
    gate_up_.backward_input(kept[kGateUp], partial);
    at::Tensor middle_grad = own_sum(std::move(partial), pass);
    kernels::rms_norm_backward(middle_grad, kept[kMiddle], middle_norm_->value, kept[kMiddleRstd], dy, middle_grad, middle_norm_grad);
    kept[kMiddleGrad] = all_rows(middle_grad, pass);

    at::Tensor attended_grad = rows.empty(heads_ * head_dim_);
    output_.backward_input(kept[kMiddleGrad], attended_grad);
    at::Tensor turned = normalizes_heads_ ? turn(kept[kQkv], rows, pass) : kept[kQkv];
    const kernels::AttentionShape shape = attention_shape(rows, pass);
    if (!kept[kAttended].defined()) {
      kept[kAttended] = rows.empty(heads_ * head_dim_);
      kept[kLse] = empty_lse(rows);
      kernels::attention(turned, shape, kept[kAttended], kept[kLse]);
    }
    kernels::attention_backward(attended_grad, kept[kAttended], kept[kLse], shape, turned);
    attended_grad.reset();
    kept[kLse].reset();
    kernels::rope(turned, heads_ + kv_heads_, head_dim_, rows.seq, pass.position, rope_table_, true, pass.batch->positions);
    if (normalizes_heads_) {
      at::Tensor head_norm_grads = kept[kNormGrads].narrow(0, 2 * hidden_, 2 * head_dim_).view({2, head_dim_});
      kernels::rms_norm_heads_backward(kept[kQkv], {heads_, kv_heads_, head_dim_}, head_norms_[0].value, head_norms_[1].value, epsilon_,
                                       turned, head_norm_grads);
      kept[kQkv] = std::move(turned);
    }
    partial = rows.empty(hidden_);
    qkv_.backward_input(kept[kQkv], partial);
    at::Tensor input_grad = own_sum(std::move(partial), pass);
    kernels::rms_norm_backward(input_grad, kept[kInput], input_norm_->value, kept[kInputRstd], middle_grad, input_grad, input_norm_grad);
    return {input_grad.view(output_grad.sizes())};
  }

  void backward_weight(Saved& saved, const Pass& pass) override {
    Tensors& kept = saved.tensors;
    ensure(kept.size() == kKeptForWeightsCount, "backward_weight without backward_input");
    PendingExchange norm_grads = sum_norm_grads(kept[kNormGrads], pass);
    down_.backward_weight(kept[kOutputGrad], kept[kFeedForward]);
    kept[kOutputGrad].reset();
    kept[kFeedForward].reset();
    // Each normalized input is gathered beside the product before the one that reads it.
    PendingExchange middle = normed_again(kept[kMiddle], middle_norm_->value, kept[kMiddleRstd], pass);
    output_.backward_weight(kept[kMiddleGrad], kept[kAttended]);
    kept[kMiddleGrad].reset();
    kept[kAttended].reset();
    at::Tensor normed = middle.finish(pass);
    PendingExchange input = normed_again(kept[kInput], input_norm_->value, kept[kInputRstd], pass);
    gate_up_.backward_weight(kept[kGateUp], normed);
    normed.reset();
    kept[kGateUp].reset();
    qkv_.backward_weight(kept[kQkv], input.finish(pass));
    norm_grads.finish(pass);
    at::Tensor rest = kept[kNormGrads];
    const auto add = [&](const Parameter& parameter) {
      const std::int64_t count = parameter.grad.numel();
      parameter.grad.add_(rest.narrow(0, 0, count));
      rest = rest.narrow(0, count, rest.size(0) - count);
    };
    add(*input_norm_);
    add(*middle_norm_);
    for (const Parameter& head_norm : head_norms_) add(head_norm);
    kept.clear();
  }

 private:
  at::Tensor empty_lse(const Rows& rows) const { return at::empty({rows.batch, heads_, rows.seq}, at::kFloat); }

  // A normalized input of the forward pass, all rows of it.
  static PendingExchange normed_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd, const Pass& pass) {
    at::Tensor normed = at::empty_like(x);
    kernels::rms_norm_again(x, weight, rstd, normed);
    return PendingExchange::all_rows(std::move(normed), pass);
  }

  // Every rank holds the norms' weights. It has seen its own heads alone and, under sequence parallelism, its own rows.
  PendingExchange sum_norm_grads(const at::Tensor& grads, const Pass& pass) const {
    const std::int64_t first = pass.sequence_parallel ? 0 : 2 * hidden_;
    const std::int64_t count = grads.size(0) - first;
    return count == 0 ? PendingExchange() : PendingExchange::all_reduce(grads.narrow(0, first, count), pass);
  }

  kernels::AttentionShape attention_shape(const Rows& rows, const Pass& pass) const {
    return {rows.batch, rows.seq, heads_, kv_heads_, head_dim_, window_, kernels::document_segments(pass.batch->positions)};
  }

  // Queries, keys and values as the attention reads them: rotated in place or, where heads are normalized, both in a new tensor.
  at::Tensor turn(const at::Tensor& qkv, const Rows& rows, const Pass& pass) const {
    at::Tensor turned = qkv;
    if (normalizes_heads_) {
      turned = rows.empty(qkv_.out_width());
      kernels::rms_norm_heads(qkv, {heads_, kv_heads_, head_dim_}, head_norms_[0].value, head_norms_[1].value, epsilon_, turned);
    }
    kernels::rope(turned, heads_ + kv_heads_, head_dim_, rows.seq, pass.position, rope_table_, false, pass.batch->positions);
    return turned;
  }

  void grow_rope_table(std::int64_t positions) {
    if (positions > rope_table_.size(1)) rope_table_ = kernels::rope_table(2 * positions, head_dim_, frequencies_);
  }

  std::int64_t hidden_, heads_, kv_heads_, head_dim_, ffn_, window_;
  bool biased_, normalizes_heads_;
  double epsilon_;
  kernels::RopeFrequencies frequencies_;
  at::Tensor rope_table_;
  std::vector<Parameter> parameters_;
  const Parameter* input_norm_ = nullptr;  // these three within parameters_
  const Parameter* middle_norm_ = nullptr;
  std::span<const Parameter> head_norms_;  // the queries' and the keys'
  StackedLinear qkv_, output_, gate_up_, down_;
};

}  // namespace

std::unique_ptr<Block> make_transformer_layer(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<TransformerLayer>(spec, placement);
}

}  // namespace tessera::nn
