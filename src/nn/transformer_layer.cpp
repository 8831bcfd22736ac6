#include "nn/transformer_layer.hpp"

#include <ATen/ops/empty.h>

#include "nn/feed_forward.hpp"
#include "nn/kernels/norm.hpp"

namespace tessera::nn {
namespace {

// y = m + feed_forward(norm(m)), m = x + attention(norm(x)).
class TransformerLayer final : public Block {
 public:
  TransformerLayer(const model::BlockSpec& spec, const BlockPlacement& placement, std::unique_ptr<FeedForward> feed_forward)
      : hidden_(spec.dim("hidden")),
        epsilon_(spec.real("norm_eps")),
        attention_(spec, placement),
        feed_forward_(std::move(feed_forward)),
        kept_count_(kOwnCount + feed_forward_->kept_count()) {}

  void bind(std::vector<Parameter> parameters) override {
    parameters_ = std::move(parameters);
    ParameterRow rest(parameters_);
    attention_.bind(rest);
    middle_norm_ = rest.take(1).data();
    feed_forward_->bind(rest);
    ensure(rest.empty(), "a layer has parameters that its dimensions do not ask for");
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }

  Tensors forward(const Tensors& inputs, Saved& saved, const Pass& pass) override {
    const at::Tensor& input = inputs.at(0);
    const Rows rows(input, pass);
    const at::Tensor x = input.view({rows.own(), hidden_});
    Tensors kept(kept_count_);
    at::Tensor middle = attention_.forward(x, rows, of_attention(kept), pass);
    at::Tensor normed = rows.empty_own(hidden_);
    at::Tensor rstd = rows.statistic();
    kernels::add_rms_norm(middle, x, middle_norm_->value, epsilon_, normed, rstd);
    at::Tensor out = feed_forward_->forward(std::move(normed), rows, of_feed_forward(kept), pass);
    out.add_(middle);
    if (pass.training) {
      kept[kMiddle] = std::move(middle);
      kept[kMiddleRstd] = std::move(rstd);
      saved.tensors = std::move(kept);
    } else {
      saved.tensors.clear();
    }
    return {out.view(input.sizes())};
  }

  Tensors backward_input(const Tensors& output_grads, Saved& saved, const Pass& pass) override {
    Tensors& kept = saved.tensors;
    ensure(kept.size() == kept_count_ && !kept[kNormGrads].defined(), "backward_input without a training forward");
    const at::Tensor& output_grad = output_grads.at(0);
    const Rows rows(output_grad, pass);
    const at::Tensor dy = output_grad.view({rows.own(), hidden_});
    const std::int64_t of_heads = attention_.head_norm_count();
    at::Tensor norm_grads = kept[kNormGrads] = at::empty({2 * hidden_ + of_heads}, at::kFloat);
    at::Tensor middle_grad = feed_forward_->backward_input(dy, rows, of_feed_forward(kept), pass);
    at::Tensor middle_norm_grad = norm_grads.narrow(0, hidden_, hidden_);
    kernels::rms_norm_backward(middle_grad, kept[kMiddle], middle_norm_->value, kept[kMiddleRstd], dy, middle_grad, middle_norm_grad);
    const at::Tensor input_grad = attention_.backward_input(middle_grad, rows, of_attention(kept), norm_grads.narrow(0, 0, hidden_),
                                                            norm_grads.narrow(0, 2 * hidden_, of_heads), pass);
    return {input_grad.view(output_grad.sizes())};
  }

  void backward_weight(Saved& saved, const Pass& pass) override {
    Tensors& kept = saved.tensors;
    ensure(kept.size() == kept_count_ && kept[kNormGrads].defined(), "backward_weight without backward_input");
    PendingExchange norm_grads = sum_norm_grads(kept[kNormGrads], pass);
    feed_forward_->backward_last_weights(of_feed_forward(kept));
    // Each normalized input is gathered beside the product before the one that reads it.
    PendingExchange middle = normed_again(kept[kMiddle], middle_norm_->value, kept[kMiddleRstd], pass);
    attention_.backward_last_weights(of_attention(kept));
    PendingExchange input = attention_.normed_input(of_attention(kept), pass);
    feed_forward_->backward_first_weights(std::move(middle), of_feed_forward(kept), pass);
    attention_.backward_first_weights(std::move(input), of_attention(kept), pass);
    norm_grads.finish(pass);
    at::Tensor rest = kept[kNormGrads];
    const auto add = [&](const Parameter& parameter) {
      const std::int64_t count = parameter.grad.numel();
      parameter.grad.add_(rest.narrow(0, 0, count));
      rest = rest.narrow(0, count, rest.size(0) - count);
    };
    add(attention_.norm());
    add(*middle_norm_);
    for (const Parameter& head_norm : attention_.head_norms()) add(head_norm);
    kept.clear();
  }

 private:
  // What is kept of a micro-batch: the attention's, the layer's own, the feed-forward network's. The layer's own are there after the
  // forward pass, but for kNormGrads, which the input half of the backward pass makes: the gradients of the norms' weights in one row, the
  // input's, the middle's and, where heads are normalized, the queries' and the keys'.
  enum Own { kMiddle = LayerAttention::kKeptCount, kMiddleRstd, kNormGrads, kOwnCount };
  static std::span<at::Tensor> of_attention(Tensors& kept) { return std::span(kept).first(LayerAttention::kKeptCount); }
  static std::span<at::Tensor> of_feed_forward(Tensors& kept) { return std::span(kept).subspan(kOwnCount); }

  // Every rank holds the norms' weights. It has seen its own heads alone and, under sequence parallelism, its own rows.
  PendingExchange sum_norm_grads(const at::Tensor& grads, const Pass& pass) const {
    const std::int64_t first = pass.sequence_parallel ? 0 : 2 * hidden_;
    const std::int64_t count = grads.size(0) - first;
    return count == 0 ? PendingExchange() : PendingExchange::all_reduce(grads.narrow(0, first, count), pass);
  }

  const std::int64_t hidden_;
  const double epsilon_;
  LayerAttention attention_;
  const std::unique_ptr<FeedForward> feed_forward_;
  const std::size_t kept_count_;
  std::vector<Parameter> parameters_;
  const Parameter* middle_norm_ = nullptr;  // within parameters_
};

}  // namespace

std::unique_ptr<Block> make_transformer_layer(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<TransformerLayer>(spec, placement, make_swiglu(spec, placement));
}

std::unique_ptr<Block> make_moe_layer(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<TransformerLayer>(spec, placement, make_experts(spec, placement));
}

}  // namespace tessera::nn
