#include "nn/kernels/gelu.hpp"

#include "nn/feed_forward.hpp"
#include "nn/kernels/bias.hpp"

namespace tessera::nn {
namespace {

// The maps of a gate and of what it multiplies are stored as one.
class Gelu final : public FeedForward {
 public:
  // Padding needs no care: zeros in the weights make zeros in the hidden vector and in every gradient of it.
  Gelu(const model::BlockSpec& spec, const BlockPlacement& placement)
      : hidden_(spec.dim("hidden")),
        width_(model::shard_extent(spec.dim("ffn"), placement.tensor_size)),
        biased_(has(spec, "biases")),
        form_(has(spec, "gelu_exact") ? kernels::GeluForm::exact : kernels::GeluForm::tanh),
        first_(stored_maps(spec)),
        last_(stored_maps(spec)) {}

  void bind(ParameterRow& parameters) override {
    const auto weight = parameters.take(1);
    first_.bind(weight, parameters.take(biased_ ? 1 : 0));
    last_.bind(parameters.take(1));
    last_bias_ = parameters.take(biased_ ? 1 : 0);
  }

  std::size_t kept_count() const override { return kKeptCount; }

  at::Tensor forward(at::Tensor normed, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) override {
    at::Tensor x = rows.empty(first_.out_width());
    first_.forward(all_rows(normed, pass), x);
    normed.reset();
    at::Tensor activated = rows.empty(width_);
    kernels::gelu(x, activated, form_);
    if (pass.training) kept[kX] = x;
    x.reset();
    at::Tensor out =
        own_sum_of(std::move(activated), hidden_, pass, [&](const at::Tensor& in, at::Tensor& out) { last_.forward(in, out); });
    for (const Parameter& bias : last_bias_) kernels::add_bias(out, bias.value);
    return out;
  }

  at::Tensor backward_input(const at::Tensor& grad, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) override {
    kept[kOutputGrad] = all_rows(grad, pass);
    kept[kActivated] = rows.empty(width_);
    last_.backward_input(kept[kOutputGrad], kept[kActivated]);
    kernels::gelu_backward(kept[kX], kept[kActivated], form_);
    return own_sum_of(kept[kX], hidden_, pass, [&](const at::Tensor& in, at::Tensor& out) { first_.backward_input(in, out); });
  }

  void backward_last_weights(std::span<at::Tensor> kept) override {
    last_.backward_weight(kept[kOutputGrad], kept[kActivated]);
    // Every rank has all rows of this gradient, and holds the bias.
    for (const Parameter& bias : last_bias_) kernels::bias_backward(kept[kOutputGrad], bias.grad);
    kept[kOutputGrad].reset();
    kept[kActivated].reset();
  }

  void backward_first_weights(PendingExchange normed, std::span<at::Tensor> kept, const Pass& pass) override {
    first_.backward_weight(kept[kX], normed.finish(pass));
    kept[kX].reset();
  }

 private:
  // After the forward pass the first; the input half of the backward pass turns it into its gradient and adds the others for the weight
  // half.
  enum Kept { kX, kOutputGrad, kActivated, kKeptCount };

  std::int64_t hidden_, width_;
  bool biased_;
  kernels::GeluForm form_;
  StackedLinear first_, last_;
  std::span<const Parameter> last_bias_;  // one or none
};

}  // namespace

std::unique_ptr<FeedForward> make_gelu(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<Gelu>(spec, placement);
}

}  // namespace tessera::nn
