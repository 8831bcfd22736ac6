#include "nn/transformer_layer.hpp"

#include <ATen/ops/empty.h>

#include "nn/feed_forward.hpp"
#include "nn/row_dropout.hpp"

namespace tessera::nn {
namespace {

// y = m + drop(feed_forward(norm(m))), m = x + drop(attention(norm(x))).
class TransformerLayer final : public Block {
 public:
  TransformerLayer(const model::BlockSpec& spec, const BlockPlacement& placement, std::unique_ptr<FeedForward> feed_forward)
      : hidden_(spec.dim("hidden")),
        attention_(spec, placement),
        drop_attended_(spec, kAttended),
        middle_norm_(spec),
        feed_forward_(std::move(feed_forward)),
        drop_fed_(spec, kFeedForward),
        kept_count_(kOwnCount + feed_forward_->kept_count()) {}

  void bind(std::vector<Parameter> parameters) override {
    parameters_ = std::move(parameters);
    ParameterRow rest(parameters_);
    attention_.bind(rest);
    middle_norm_.bind(rest);
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
    drop_attended_.apply(middle, rows, pass);
    at::Tensor normed = rows.empty_own(hidden_);
    at::Tensor statistics = middle_norm_.empty_statistics(rows);
    middle_norm_.forward_sum(middle, x, normed, statistics);
    at::Tensor out = feed_forward_->forward(std::move(normed), rows, of_feed_forward(kept), pass);
    drop_fed_.apply(out, rows, pass);
    out.add_(middle);
    if (pass.training) {
      kept[kMiddle] = std::move(middle);
      kept[kMiddleStatistics] = std::move(statistics);
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
    const std::int64_t of_norm = middle_norm_.grad_count();
    const at::Tensor norm_grads = kept[kNormGrads] = at::empty({2 * of_norm + attention_.maps().shared_count()}, rows.f32());
    at::Tensor middle_grad = feed_forward_->backward_input(drop_fed_.applied(dy, rows, pass), rows, of_feed_forward(kept), pass);
    middle_norm_.backward(middle_grad, kept[kMiddle], kept[kMiddleStatistics], dy, middle_grad, norm_grads.narrow(0, of_norm, of_norm));
    const at::Tensor input_grad = attention_.backward_input(drop_attended_.applied(middle_grad, rows, pass), middle_grad, rows,
                                                            of_attention(kept), norm_grads.narrow(0, 0, of_norm),
                                                            norm_grads.narrow(0, 2 * of_norm, attention_.maps().shared_count()), pass);
    return {input_grad.view(output_grad.sizes())};
  }

  void backward_weight(Saved& saved, const Pass& pass) override {
    Tensors& kept = saved.tensors;
    ensure(kept.size() == kept_count_ && kept[kNormGrads].defined(), "backward_weight without backward_input");
    PendingExchange norm_grads = sum_norm_grads(kept[kNormGrads], pass);
    feed_forward_->backward_last_weights(of_feed_forward(kept));
    // Each normalized input is gathered beside the product before the one that reads it.
    PendingExchange middle = middle_norm_.again(kept[kMiddle], kept[kMiddleStatistics], pass);
    attention_.backward_last_weights(of_attention(kept));
    PendingExchange input = attention_.mapped_input(of_attention(kept), pass);
    feed_forward_->backward_first_weights(std::move(middle), of_feed_forward(kept), pass);
    attention_.backward_first_weights(std::move(input), of_attention(kept), pass);
    norm_grads.finish(pass);
    const std::int64_t of_norm = middle_norm_.grad_count();
    attention_.norm().add_grads(kept[kNormGrads].narrow(0, 0, of_norm));
    middle_norm_.add_grads(kept[kNormGrads].narrow(0, of_norm, of_norm));
    std::int64_t first = 2 * of_norm;
    for (const Parameter& shared : attention_.maps().shared()) {
      shared.grad.add_(kept[kNormGrads].narrow(0, first, shared.grad.numel()).view_as(shared.grad));
      first += shared.grad.numel();
    }
    kept.clear();
  }

 private:
  // What is kept of a micro-batch: the attention's, the layer's own, the feed-forward network's. The layer's own are there after the
  // forward pass, but for kNormGrads, which the input half of the backward pass makes: the gradients of the norms' parameters in one row,
  // the input's, the middle's, and those of the parameters that attention's maps share.
  enum Own { kMiddle = LayerAttention::kKeptCount, kMiddleStatistics, kNormGrads, kOwnCount };
  static std::span<at::Tensor> of_attention(Tensors& kept) { return std::span(kept).first(LayerAttention::kKeptCount); }
  static std::span<at::Tensor> of_feed_forward(Tensors& kept) { return std::span(kept).subspan(kOwnCount); }

  // Every rank holds the norms' parameters. It has seen its own heads alone and, under sequence parallelism, its own rows.
  PendingExchange sum_norm_grads(const at::Tensor& grads, const Pass& pass) const {
    const std::int64_t first = pass.sequence_parallel ? 0 : 2 * middle_norm_.grad_count();
    const std::int64_t count = grads.size(0) - first;
    return count == 0 ? PendingExchange() : PendingExchange::all_reduce(grads.narrow(0, first, count), pass);
  }

  const std::int64_t hidden_;
  LayerAttention attention_;
  const RowDropout drop_attended_;
  Norm middle_norm_;
  const std::unique_ptr<FeedForward> feed_forward_;
  const RowDropout drop_fed_;
  const std::size_t kept_count_;
  std::vector<Parameter> parameters_;
};

}  // namespace

std::unique_ptr<Block> make_transformer_layer(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<TransformerLayer>(spec, placement, has(spec, "gelu") ? make_gelu(spec, placement) : make_swiglu(spec, placement));
}

std::unique_ptr<Block> make_moe_layer(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<TransformerLayer>(spec, placement, make_experts(spec, placement));
}

}  // namespace tessera::nn
