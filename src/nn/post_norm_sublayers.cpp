#include <ATen/ops/empty.h>

#include "nn/feed_forward.hpp"
#include "nn/row_dropout.hpp"
#include "nn/transformer_layer.hpp"

namespace tessera::nn {
namespace {

// f, as PostNormSublayer takes it.
class Attended {
 public:
  static constexpr Site kSite = kAttended;

  Attended(const model::BlockSpec& spec, const BlockPlacement& placement) : attention_(spec, placement) {
    ensure(attention_.maps().shared_count() == 0, "a layer whose norms stand behind its sums has parameters that ranks share");
  }
  void bind(ParameterRow& parameters) { attention_.bind(parameters); }
  std::size_t kept_count() const { return LayerAttention::kKeptCount; }

  at::Tensor forward(const at::Tensor& x, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) {
    return attention_.forward(x, rows, kept, pass);
  }
  at::Tensor backward_input(const at::Tensor& grad, const at::Tensor& sum_grad, const Rows& rows, std::span<at::Tensor> kept,
                            const Pass& pass) {
    return attention_.backward_input(grad, sum_grad, rows, kept, {}, {}, pass);
  }
  void backward_weight(std::span<at::Tensor> kept, const Pass& pass) {
    // What the first maps read is gathered beside the product of the last one.
    PendingExchange input = attention_.mapped_input(kept, pass);
    attention_.backward_last_weights(kept);
    attention_.backward_first_weights(std::move(input), kept, pass);
  }

 private:
  LayerAttention attention_;
};

class Fed {
 public:
  static constexpr Site kSite = kFeedForward;

  Fed(const model::BlockSpec& spec, const BlockPlacement& placement) : feed_forward_(make_gelu(spec, placement)) {}
  void bind(ParameterRow& parameters) { feed_forward_->bind(parameters); }
  std::size_t kept_count() const { return 1 + feed_forward_->kept_count(); }

  at::Tensor forward(const at::Tensor& x, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) {
    kept[0] = x;
    return feed_forward_->forward(x, rows, kept.subspan(1), pass);
  }
  at::Tensor backward_input(const at::Tensor& grad, const at::Tensor& sum_grad, const Rows& rows, std::span<at::Tensor> kept,
                            const Pass& pass) {
    at::Tensor input_grad = feed_forward_->backward_input(grad, rows, kept.subspan(1), pass);
    return input_grad.add_(sum_grad);
  }
  void backward_weight(std::span<at::Tensor> kept, const Pass& pass) {
    PendingExchange input = PendingExchange::all_rows(kept[0], pass);
    feed_forward_->backward_last_weights(kept.subspan(1));
    feed_forward_->backward_first_weights(std::move(input), kept.subspan(1), pass);
  }

 private:
  std::unique_ptr<FeedForward> feed_forward_;
};

// y = norm(x + drop(f(x))).
template <typename Function>
class PostNormSublayer final : public Block {
 public:
  PostNormSublayer(const model::BlockSpec& spec, const BlockPlacement& placement)
      : hidden_(spec.dim("hidden")),
        function_(spec, placement),
        drop_(spec, Function::kSite),
        norm_(spec),
        kept_count_(kOwnCount + function_.kept_count()) {}

  void bind(std::vector<Parameter> parameters) override {
    parameters_ = std::move(parameters);
    ParameterRow rest(parameters_);
    function_.bind(rest);
    norm_.bind(rest);
    ensure(rest.empty(), "half a layer has parameters that its dimensions do not ask for");
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }

  Tensors forward(const Tensors& inputs, Saved& saved, const Pass& pass) override {
    const at::Tensor& input = inputs.at(0);
    const Rows rows(input, pass);
    const at::Tensor x = input.view({rows.own(), hidden_});
    Tensors kept(kept_count_);
    at::Tensor sum = function_.forward(x, rows, of_function(kept), pass);
    drop_.apply(sum, rows, pass);
    at::Tensor out = rows.empty_own(hidden_);
    at::Tensor statistics = norm_.empty_statistics(rows);
    norm_.forward_sum(sum, x, out, statistics);
    saved.tensors.clear();
    if (pass.training) {
      kept[kSum] = std::move(sum);
      kept[kStatistics] = std::move(statistics);
      saved.tensors = std::move(kept);
    }
    return {out.view(input.sizes())};
  }

  Tensors backward_input(const Tensors& output_grads, Saved& saved, const Pass& pass) override {
    Tensors& kept = saved.tensors;
    ensure(kept.size() == kept_count_ && !kept[kNormGrads].defined(), "backward_input without a training forward");
    const at::Tensor& output_grad = output_grads.at(0);
    const Rows rows(output_grad, pass);
    kept[kNormGrads] = at::empty({norm_.grad_count()}, rows.f32());
    at::Tensor sum_grad = rows.empty_own(hidden_);
    norm_.backward(output_grad.view({rows.own(), hidden_}), kept[kSum], kept[kStatistics], {}, sum_grad, kept[kNormGrads]);
    kept[kSum].reset();
    const at::Tensor input_grad = function_.backward_input(drop_.applied(sum_grad, rows, pass), sum_grad, rows, of_function(kept), pass);
    return {input_grad.view(output_grad.sizes())};
  }

  void backward_weight(Saved& saved, const Pass& pass) override {
    Tensors& kept = saved.tensors;
    ensure(kept.size() == kept_count_ && kept[kNormGrads].defined(), "backward_weight without backward_input");
    // Every rank holds the norm's parameters, and has seen its own rows.
    PendingExchange norm_grads = pass.sequence_parallel ? PendingExchange::all_reduce(kept[kNormGrads], pass) : PendingExchange();
    function_.backward_weight(of_function(kept), pass);
    norm_grads.finish(pass);
    norm_.add_grads(kept[kNormGrads]);
    kept.clear();
  }

 private:
  // What is kept of a micro-batch: this, and then what the function keeps. kNormGrads comes with the input half of the backward pass.
  enum Own { kSum, kStatistics, kNormGrads, kOwnCount };
  static std::span<at::Tensor> of_function(Tensors& kept) { return std::span(kept).subspan(kOwnCount); }

  const std::int64_t hidden_;
  Function function_;
  const RowDropout drop_;
  Norm norm_;
  const std::size_t kept_count_;
  std::vector<Parameter> parameters_;
};

}  // namespace

std::unique_ptr<Block> make_attention_sublayer(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<PostNormSublayer<Attended>>(spec, placement);
}

std::unique_ptr<Block> make_feed_forward_sublayer(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<PostNormSublayer<Fed>>(spec, placement);
}

}  // namespace tessera::nn
