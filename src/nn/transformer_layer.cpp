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

// What is kept, by place in Saved::tensors. After the forward pass:
enum Kept { kInput, kInputRstd, kQkv, kAttended, kLse, kMiddle, kMiddleRstd, kGateUp, kKeptCount };
// The input half of the backward pass turns kQkv and kGateUp into their gradients, drops kLse and adds these for the
// weight half:
enum KeptForWeights { kOutputGrad = kKeptCount, kFeedForward, kMiddleGrad, kInputNormGrad, kMiddleNormGrad, kKeptForWeightsCount };

class TransformerLayer final : public Block {
 public:
  TransformerLayer(const model::BlockSpec& spec, const BlockPlacement& placement)
      : hidden_(spec.dim("hidden")),
        heads_(divided(spec, "heads", placement.tensor_size)),
        kv_heads_(divided(spec, "kv_heads", placement.tensor_size)),
        head_dim_(spec.dim("head_dim")),
        // Padding needs no care: zeros in the weights make zeros in the hidden vector and in every gradient of it.
        ffn_(model::shard_extent(spec.dim("ffn"), placement.tensor_size)),
        theta_(spec.real("rope_theta")),
        epsilon_(spec.real("norm_eps")),
        rope_table_(kernels::rope_table(spec.dim("seq"), head_dim_, theta_)) {}

  void bind(std::vector<Parameter> parameters) override {
    ensure(parameters.size() == 9, "a transformer layer has nine parameters");
    parameters_ = std::move(parameters);
    const std::span<const Parameter> all(parameters_);
    qkv_.bind(all.subspan(1, 3));
    output_.bind(all.subspan(4, 1));
    gate_up_.bind(all.subspan(6, 2));
    down_.bind(all.subspan(8, 1));
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }

  Tensors forward(const Tensors& inputs, Saved& saved, const Pass& pass) override {
    const at::Tensor& input = inputs.at(0);
    const Rows rows{input.size(0), input.size(1), input.options()};
    const at::Tensor x = input.view({rows.count(), hidden_});

    at::Tensor normed = rows.empty(hidden_);
    at::Tensor input_rstd = rows.statistic();
    kernels::rms_norm(x, input_norm().value, epsilon_, normed, input_rstd);
    at::Tensor qkv = rows.empty(qkv_.out_width());
    qkv_.forward(normed, qkv);
    grow_rope_table(pass.position + rows.seq);
    kernels::rope(qkv, heads_ + kv_heads_, head_dim_, rows.seq, pass.position, rope_table_, false);

    const kernels::AttentionShape shape{rows.batch, rows.seq, heads_, kv_heads_, head_dim_};
    at::Tensor attended = rows.empty(heads_ * head_dim_);
    at::Tensor lse;
    if (pass.cache != nullptr) {
      kernels::attention_with_cache(qkv, shape, pass.position, pass.cache->keys, pass.cache->values, attended);
    } else {
      lse = at::empty({rows.batch, heads_, rows.seq}, at::kFloat);
      kernels::attention(qkv, shape, attended, lse);
    }
    if (!pass.training) qkv.reset();

    at::Tensor middle = rows.empty(hidden_);
    output_.forward(attended, middle);
    all_reduce(middle, pass);
    if (!pass.training) attended.reset();
    at::Tensor middle_rstd = rows.statistic();
    kernels::add_rms_norm(middle, x, middle_norm().value, epsilon_, normed, middle_rstd);

    at::Tensor gate_up = rows.empty(2 * ffn_);
    gate_up_.forward(normed, gate_up);
    normed.reset();
    at::Tensor feed_forward = rows.empty(ffn_);
    kernels::swiglu(gate_up, feed_forward);
    if (!pass.training) gate_up.reset();
    at::Tensor out = rows.empty(hidden_);
    down_.forward(feed_forward, out);
    all_reduce(out, pass);
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
    const Rows rows{output_grad.size(0), output_grad.size(1), output_grad.options()};
    const at::Tensor dy = output_grad.view({rows.count(), hidden_});
    kept[kOutputGrad] = dy;

    kept[kFeedForward] = rows.empty(ffn_);
    down_.backward_input(dy, kept[kFeedForward]);
    kernels::swiglu_backward(kept[kGateUp], kept[kFeedForward]);
    at::Tensor middle_grad = rows.empty(hidden_);
    gate_up_.backward_input(kept[kGateUp], middle_grad);
    all_reduce(middle_grad, pass);
    kept[kMiddleNormGrad] = at::empty({hidden_}, at::kFloat);
    kernels::rms_norm_backward(middle_grad, kept[kMiddle], middle_norm().value, kept[kMiddleRstd], dy, middle_grad, kept[kMiddleNormGrad]);
    kept[kMiddleGrad] = middle_grad;

    at::Tensor attended_grad = rows.empty(heads_ * head_dim_);
    output_.backward_input(middle_grad, attended_grad);
    const kernels::AttentionShape shape{rows.batch, rows.seq, heads_, kv_heads_, head_dim_};
    kernels::attention_backward(attended_grad, kept[kAttended], kept[kLse], shape, kept[kQkv]);
    attended_grad.reset();
    kept[kLse].reset();
    kernels::rope(kept[kQkv], heads_ + kv_heads_, head_dim_, rows.seq, pass.position, rope_table_, true);
    at::Tensor input_grad = rows.empty(hidden_);
    qkv_.backward_input(kept[kQkv], input_grad);
    all_reduce(input_grad, pass);
    kept[kInputNormGrad] = at::empty({hidden_}, at::kFloat);
    kernels::rms_norm_backward(input_grad, kept[kInput], input_norm().value, kept[kInputRstd], middle_grad, input_grad,
                               kept[kInputNormGrad]);
    return {input_grad.view(output_grad.sizes())};
  }

  void backward_weight(Saved& saved, const Pass&) override {
    Tensors& kept = saved.tensors;
    ensure(kept.size() == kKeptForWeightsCount, "backward_weight without backward_input");
    down_.backward_weight(kept[kOutputGrad], kept[kFeedForward]);
    kept[kOutputGrad].reset();
    kept[kFeedForward].reset();
    at::Tensor normed = at::empty_like(kept[kMiddle]);
    kernels::rms_norm_again(kept[kMiddle], middle_norm().value, kept[kMiddleRstd], normed);
    gate_up_.backward_weight(kept[kGateUp], normed);
    kept[kGateUp].reset();
    output_.backward_weight(kept[kMiddleGrad], kept[kAttended]);
    kernels::rms_norm_again(kept[kInput], input_norm().value, kept[kInputRstd], normed);
    qkv_.backward_weight(kept[kQkv], normed);
    at::Tensor input_norm_grad = input_norm().grad;
    input_norm_grad.add_(kept[kInputNormGrad]);
    at::Tensor middle_norm_grad = middle_norm().grad;
    middle_norm_grad.add_(kept[kMiddleNormGrad]);
    kept.clear();
  }

 private:
  struct Rows {
    std::int64_t batch, seq;
    at::TensorOptions options;
    std::int64_t count() const { return batch * seq; }
    at::Tensor empty(std::int64_t width) const { return at::empty({count(), width}, options); }
    at::Tensor statistic() const { return at::empty({count()}, at::kFloat); }
  };

  const Parameter& input_norm() const { return parameters_[0]; }
  const Parameter& middle_norm() const { return parameters_[5]; }

  void grow_rope_table(std::int64_t positions) {
    if (positions > rope_table_.size(1)) rope_table_ = kernels::rope_table(2 * positions, head_dim_, theta_);
  }

  std::int64_t hidden_, heads_, kv_heads_, head_dim_, ffn_;
  double theta_, epsilon_;
  at::Tensor rope_table_;
  std::vector<Parameter> parameters_;
  StackedLinear qkv_, output_, gate_up_, down_;
};

}  // namespace

std::unique_ptr<Block> make_transformer_layer(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<TransformerLayer>(spec, placement);
}

}  // namespace tessera::nn
