#include <ATen/ops/empty.h>

#include "nn/feed_forward.hpp"
#include "nn/row_dropout.hpp"
#include "nn/transformer_layer.hpp"

namespace tessera::nn {
namespace {

// y = norm(m + drop(feed_forward(m))), m = norm(x + drop(attention(x))).
class PostNormLayer final : public Block {
 public:
  PostNormLayer(const model::BlockSpec& spec, const BlockPlacement& placement)
      : hidden_(spec.dim("hidden")),
        attention_(spec, placement),
        drop_attended_(spec, kAttended),
        middle_norm_(spec),
        feed_forward_(make_gelu(spec, placement)),
        drop_fed_(spec, kFeedForward),
        last_norm_(spec),
        kept_count_(kOwnCount + feed_forward_->kept_count()) {
    ensure(attention_.maps().shared_count() == 0, "a layer whose norms stand behind its sums has parameters that ranks share");
  }

  void bind(std::vector<Parameter> parameters) override {
    parameters_ = std::move(parameters);
    ParameterRow rest(parameters_);
    attention_.bind(rest);
    middle_norm_.bind(rest);
    feed_forward_->bind(rest);
    last_norm_.bind(rest);
    ensure(rest.empty(), "a layer has parameters that its dimensions do not ask for");
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }

  Tensors forward(const Tensors& inputs, Saved& saved, const Pass& pass) override {
    const at::Tensor& input = inputs.at(0);
    const Rows rows(input, pass);
    const at::Tensor x = input.view({rows.own(), hidden_});
    Tensors kept(kept_count_);
    at::Tensor sum = attention_.forward(x, rows, of_attention(kept), pass);
    drop_attended_.apply(sum, rows, pass);
    at::Tensor middle = normalized(middle_norm_, std::move(sum), x, rows, kept[kMiddleSum], kept[kMiddleStatistics], pass);
    sum = feed_forward_->forward(middle, rows, of_feed_forward(kept), pass);
    drop_fed_.apply(sum, rows, pass);
    at::Tensor out = normalized(last_norm_, std::move(sum), middle, rows, kept[kLastSum], kept[kLastStatistics], pass);
    saved.tensors.clear();
    if (pass.training) saved.tensors = std::move(kept);
    return {out.view(input.sizes())};
  }

  Tensors backward_input(const Tensors& output_grads, Saved& saved, const Pass& pass) override {
    Tensors& kept = saved.tensors;
    ensure(kept.size() == kept_count_ && !kept[kNormGrads].defined(), "backward_input without a training forward");
    const at::Tensor& output_grad = output_grads.at(0);
    const Rows rows(output_grad, pass);
    const std::int64_t of_norm = middle_norm_.grad_count();
    const at::Tensor norm_grads = kept[kNormGrads] = at::empty({2 * of_norm}, rows.f32());
    at::Tensor last_grad = rows.empty_own(hidden_);
    last_norm_.backward(output_grad.view({rows.own(), hidden_}), kept[kLastSum], kept[kLastStatistics], {}, last_grad,
                        norm_grads.narrow(0, of_norm, of_norm));
    kept[kLastSum].reset();
    at::Tensor middle_grad = feed_forward_->backward_input(drop_fed_.applied(last_grad, rows, pass), rows, of_feed_forward(kept), pass);
    middle_grad.add_(last_grad);
    middle_norm_.backward(middle_grad, kept[kMiddleSum], kept[kMiddleStatistics], {}, middle_grad, norm_grads.narrow(0, 0, of_norm));
    const at::Tensor input_grad =
        attention_.backward_input(drop_attended_.applied(middle_grad, rows, pass), middle_grad, rows, of_attention(kept), {}, {}, pass);
    return {input_grad.view(output_grad.sizes())};
  }

  void backward_weight(Saved& saved, const Pass& pass) override {
    Tensors& kept = saved.tensors;
    ensure(kept.size() == kept_count_ && kept[kNormGrads].defined(), "backward_weight without backward_input");
    // Every rank holds the norms' parameters, and has seen its own rows.
    PendingExchange norm_grads = pass.sequence_parallel ? PendingExchange::all_reduce(kept[kNormGrads], pass) : PendingExchange();
    feed_forward_->backward_last_weights(of_feed_forward(kept));
    // What the first maps read is gathered beside the product before.
    PendingExchange middle = middle_norm_.again(kept[kMiddleSum], kept[kMiddleStatistics], pass);
    attention_.backward_last_weights(of_attention(kept));
    PendingExchange input = attention_.mapped_input(of_attention(kept), pass);
    feed_forward_->backward_first_weights(std::move(middle), of_feed_forward(kept), pass);
    attention_.backward_first_weights(std::move(input), of_attention(kept), pass);
    norm_grads.finish(pass);
    const std::int64_t of_norm = middle_norm_.grad_count();
    middle_norm_.add_grads(kept[kNormGrads].narrow(0, 0, of_norm));
    last_norm_.add_grads(kept[kNormGrads].narrow(0, of_norm, of_norm));
    kept.clear();
  }

 private:
  // What is kept of a micro-batch: the attention's, the layer's own, the feed-forward network's. The layer's own are there after the
  // forward pass, but for kNormGrads, which the input half of the backward pass makes: the gradients of the norms' parameters in one row.
  enum Own { kMiddleSum = LayerAttention::kKeptCount, kMiddleStatistics, kLastSum, kLastStatistics, kNormGrads, kOwnCount };
  static std::span<at::Tensor> of_attention(Tensors& kept) { return std::span(kept).first(LayerAttention::kKeptCount); }
  static std::span<at::Tensor> of_feed_forward(Tensors& kept) { return std::span(kept).subspan(kOwnCount); }

  // norm(added + x). Keeps the sum and its statistics where the pass trains.
  at::Tensor normalized(const Norm& norm, at::Tensor added, const at::Tensor& x, const Rows& rows, at::Tensor& sum, at::Tensor& statistics,
                        const Pass& pass) const {
    at::Tensor out = rows.empty_own(hidden_);
    at::Tensor own = norm.empty_statistics(rows);
    norm.forward_sum(added, x, out, own);
    if (pass.training) {
      sum = std::move(added);
      statistics = std::move(own);
    }
    return out;
  }

  const std::int64_t hidden_;
  LayerAttention attention_;
  const RowDropout drop_attended_;
  Norm middle_norm_;
  const std::unique_ptr<FeedForward> feed_forward_;
  const RowDropout drop_fed_;
  Norm last_norm_;
  const std::size_t kept_count_;
  std::vector<Parameter> parameters_;
};

}  // namespace

std::unique_ptr<Block> make_post_norm_layer(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<PostNormLayer>(spec, placement);
}

}  // namespace tessera::nn
