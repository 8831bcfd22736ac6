#include "nn/convolution.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <utility>

#include "model/vision_cost.hpp"
#include "nn/conv_unit.hpp"

namespace tessera::nn {
namespace {

// ResNet-50 is 1.4 times as fast so, on CPUs (docs/rooms/nn.md).
at::Tensor channels_last(const at::Tensor& maps) { return maps.contiguous(at::MemoryFormat::ChannelsLast); }

// Through ReLU, of which `out` is what it let through.
at::Tensor rectified_grad(const at::Tensor& grad, const at::Tensor& out) { return at::threshold_backward(channels_last(grad), out, 0); }

class ConvLayer final : public Block {
 public:
  explicit ConvLayer(const model::BlockSpec& spec)
      : reads_data_(spec.inputs.empty()),
        unit_({spec.dim("stride"), spec.parameters.size() % 4 == 2, spec.dim("norm") != 0}),
        kernel_(spec.dim("pool_kernel")),
        stride_(spec.dim("pool_stride")),
        padding_(spec.dim("pool_padding")) {}

  void bind(std::vector<Parameter> parameters) override {
    parameters_ = std::move(parameters);
    ParameterRow rest(parameters_);
    unit_.bind(rest);
    ensure(rest.empty(), "a convolution has parameters that its dimensions do not ask for");
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }

  Tensors forward(const Tensors& inputs, Saved& saved, const Pass& pass) override {
    Tensors kept(kKeptCount);
    const at::Tensor& maps = reads_data_ ? pass.batch->at("images") : inputs.front();
    at::Tensor out = unit_.forward(channels_last(maps.to(parameters_.front().value.scalar_type())), of_unit(kept), pass).relu_();
    kept[kRectified] = out;
    if (kernel_ > 0)
      std::tie(out, kept[kPlaces]) = at::max_pool2d_with_indices(out, {kernel_, kernel_}, {stride_, stride_}, {padding_, padding_});
    saved.tensors = pass.training ? std::move(kept) : Tensors();
    return {out};
  }

  Tensors backward_input(const Tensors& output_grads, Saved& saved, const Pass& pass) override {
    Tensors& kept = saved.tensors;
    ensure(kept.size() == kKeptCount && kept[kRectified].defined(), "backward_input without a training forward");
    at::Tensor grad = channels_last(output_grads.front());
    if (kernel_ > 0)
      grad = at::max_pool2d_with_indices_backward(grad, kept[kRectified], {kernel_, kernel_}, {stride_, stride_}, {padding_, padding_},
                                                  {1, 1}, false, std::exchange(kept[kPlaces], {}));
    grad = rectified_grad(grad, std::exchange(kept[kRectified], {}));
    if (!reads_data_) return {unit_.backward_input(grad, of_unit(kept), pass)};
    unit_.end_at_data(grad, of_unit(kept), pass);
    return {};
  }

  void backward_weight(Saved& saved, const Pass& pass) override {
    Tensors kept = std::exchange(saved.tensors, {});
    ensure(kept.size() == kKeptCount && !kept[kRectified].defined(), "backward_weight without backward_input");
    unit_.backward_weight(of_unit(kept), pass);
  }

 private:
  enum Kept { kRectified = ConvUnit::kKeptCount, kPlaces, kKeptCount };
  static std::span<at::Tensor> of_unit(Tensors& kept) { return std::span(kept).first(ConvUnit::kKeptCount); }

  bool reads_data_;
  ConvUnit unit_;
  std::int64_t kernel_, stride_, padding_;  // of the windows; 0: none
  std::vector<Parameter> parameters_;
};

// Whole, or where it is split one of its two parts: the branch but for its last convolution, and that convolution with the sum.
class ResidualBlock final : public Block {
 public:
  explicit ResidualBlock(const model::BlockSpec& spec)
      : opens_(spec.kind != model::kResidualSum), closes_(spec.kind != model::kResidualBranch) {
    const bool bottleneck = spec.dim("bottleneck") != 0;
    const std::int64_t stride = spec.dim("stride");
    if (opens_) units_.push_back(ConvUnit({bottleneck ? 1 : stride}));
    if (opens_ && bottleneck) units_.push_back(ConvUnit({stride}));
    if (closes_) units_.push_back(ConvUnit({1}));
    if (closes_ && spec.dim("shortcut") != 0) shortcut_.emplace(ConvUnit::Form{stride});
  }

  void bind(std::vector<Parameter> parameters) override {
    parameters_ = std::move(parameters);
    ParameterRow rest(parameters_);
    for (ConvUnit& unit : units_) unit.bind(rest);
    if (shortcut_) shortcut_->bind(rest);
    ensure(rest.empty(), "a residual block has parameters that its dimensions do not ask for");
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }

  Tensors forward(const Tensors& inputs, Saved& saved, const Pass& pass) override {
    Tensors kept(kept_count());
    const at::Tensor input = channels_last(inputs.front());
    at::Tensor maps = opens_ ? input : channels_last(inputs.back());
    for (std::size_t i = 0; i < units_.size(); ++i) {
      if (i > 0) maps.relu_();
      maps = units_[i].forward(maps, of_unit(kept, i), pass);
    }
    if (closes_) maps.add_(shortcut_ ? shortcut_->forward(input, of_unit(kept, units_.size()), pass) : input);
    kept.back() = maps.relu_();
    saved.tensors = pass.training ? std::move(kept) : Tensors();
    return {maps};
  }

  Tensors backward_input(const Tensors& output_grads, Saved& saved, const Pass& pass) override {
    Tensors& kept = saved.tensors;
    ensure(kept.size() == kept_count() && kept.back().defined(), "backward_input without a training forward");
    const at::Tensor sum_grad = rectified_grad(output_grads.front(), std::exchange(kept.back(), {}));
    at::Tensor grad = sum_grad;
    for (std::size_t i = units_.size(); i-- > 0;) {
      grad = units_[i].backward_input(grad, of_unit(kept, i), pass);
      if (i > 0) grad = rectified_grad(grad, of_unit(kept, i)[ConvUnit::kInput]);
    }
    if (!closes_) return {grad};
    const at::Tensor passed = shortcut_ ? shortcut_->backward_input(sum_grad, of_unit(kept, units_.size()), pass) : sum_grad;
    return opens_ ? Tensors{grad.add_(passed)} : Tensors{passed, grad};
  }

  void backward_weight(Saved& saved, const Pass& pass) override {
    Tensors kept = std::exchange(saved.tensors, {});
    ensure(kept.size() == kept_count() && !kept.back().defined(), "backward_weight without backward_input");
    for (std::size_t i = 0; i < units_.size(); ++i) units_[i].backward_weight(of_unit(kept, i), pass);
    if (shortcut_) shortcut_->backward_weight(of_unit(kept, units_.size()), pass);
  }

 private:
  // The units', the shortcut's behind them, and the output, which the input half of the backward pass takes away.
  std::size_t kept_count() const { return (units_.size() + (shortcut_ ? 1 : 0)) * ConvUnit::kKeptCount + 1; }
  static std::span<at::Tensor> of_unit(Tensors& kept, std::size_t unit) {
    return std::span(kept).subspan(unit * ConvUnit::kKeptCount, ConvUnit::kKeptCount);
  }

  bool opens_, closes_;
  std::vector<ConvUnit> units_;
  std::optional<ConvUnit> shortcut_;
  std::vector<Parameter> parameters_;
};

}  // namespace

std::unique_ptr<Block> make_conv_layer(const model::BlockSpec& spec, const BlockPlacement&) { return std::make_unique<ConvLayer>(spec); }

std::unique_ptr<Block> make_residual_block(const model::BlockSpec& spec, const BlockPlacement&) {
  return std::make_unique<ResidualBlock>(spec);
}

}  // namespace tessera::nn
