#include "nn/kernels/swiglu.hpp"
#include "nn/feed_forward.hpp"

namespace tessera::nn {
namespace {

class SwiGlu final : public FeedForward {
 public:
  // Padding needs no care: zeros in the weights make zeros in the hidden vector and in every gradient of it.
  SwiGlu(const model::BlockSpec& spec, const BlockPlacement& placement)
      : hidden_(spec.dim("hidden")), width_(model::shard_extent(spec.dim("ffn"), placement.tensor_size)) {}

  void bind(ParameterRow& parameters) override {
    gate_up_.bind(parameters.take(2));
    down_.bind(parameters.take(1));
  }

  std::size_t kept_count() const override { return kKeptCount; }

  at::Tensor forward(at::Tensor normed, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) override {
    at::Tensor gate_up = rows.empty(2 * width_);
    gate_up_.forward(all_rows(normed, pass), gate_up);
    normed.reset();
    at::Tensor activated = rows.empty(width_);
    kernels::swiglu(gate_up, activated);
    if (pass.training) kept[kGateUp] = gate_up;
    gate_up.reset();
    return own_sum_of(std::move(activated), hidden_, pass, [&](const at::Tensor& in, at::Tensor& out) { down_.forward(in, out); });
  }

  at::Tensor backward_input(const at::Tensor& grad, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) override {
    kept[kOutputGrad] = all_rows(grad, pass);
    kept[kActivated] = rows.empty(width_);
    down_.backward_input(kept[kOutputGrad], kept[kActivated]);
    kernels::swiglu_backward(kept[kGateUp], kept[kActivated]);
    return own_sum_of(kept[kGateUp], hidden_, pass, [&](const at::Tensor& in, at::Tensor& out) { gate_up_.backward_input(in, out); });
  }

  void backward_last_weights(std::span<at::Tensor> kept) override {
    down_.backward_weight(kept[kOutputGrad], kept[kActivated]);
    kept[kOutputGrad].reset();
    kept[kActivated].reset();
  }

  void backward_first_weights(PendingExchange normed, std::span<at::Tensor> kept, const Pass& pass) override {
    gate_up_.backward_weight(kept[kGateUp], normed.finish(pass));
    kept[kGateUp].reset();
  }

 private:
  // After the forward pass the first; the input half of the backward pass turns it into its gradient and adds the others for the weight
  // half.
  enum Kept { kGateUp, kOutputGrad, kActivated, kKeptCount };

  std::int64_t hidden_, width_;
  StackedLinear gate_up_, down_;
};

}  // namespace

std::unique_ptr<FeedForward> make_swiglu(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<SwiGlu>(spec, placement);
}

}  // namespace tessera::nn
