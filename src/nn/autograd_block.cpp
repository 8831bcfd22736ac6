#include "nn/autograd_block.hpp"

#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "nn/autograd.hpp"

namespace tessera::nn {
namespace {

class AutogradBlock final : public Block {
 public:
  AutogradBlock(const model::BlockSpec& spec, ForwardFunction forward)
      : inputs_(spec.inputs.size()), count_(spec.parameters.size()), name_(spec.name), forward_(std::move(forward)) {
    for (std::size_t i = 0; i < count_; ++i)
      if (spec.parameters[i].buffer_momentum > 0) buffers_.push_back(i);
  }

  void bind(std::vector<Parameter> parameters) override {
    ensure(parameters.size() == count_, text(name_, " has ", count_, " parameters"));
    parameters_ = std::move(parameters);
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }

  Tensors forward(const Tensors& inputs, Saved& saved, const Pass& pass) override {
    const WithAutograd autograd(pass.training);
    Tensors leaves;
    for (const at::Tensor& input : inputs) leaves.push_back(leaf(input, pass));
    for (const Parameter& parameter : parameters_) {
      const bool buffer = parameter.spec->buffer_momentum > 0;
      leaves.push_back(buffer ? parameter.value.detach() : leaf(parameter.value, pass));
    }
    const auto parameters = leaves.begin() + static_cast<std::ptrdiff_t>(inputs_);
    Tensors outputs = forward_({leaves.begin(), parameters}, {parameters, leaves.end()}, pass);
    const Tensors shown = taken_from(outputs);
    Tensors passed;
    for (const at::Tensor& output : outputs) passed.push_back(output.detach());
    saved.tensors.clear();
    if (!pass.training) return passed;
    saved.tensors = std::move(leaves);
    for (std::size_t i = 0; i < buffers_.size(); ++i) saved.tensors[inputs_ + buffers_[i]] = shown[i];
    saved.tensors.insert(saved.tensors.end(), outputs.begin(), outputs.end());
    return passed;
  }

  Tensors backward_input(const Tensors& output_grads, Saved& saved, const Pass& pass) override {
    ensure(saved.tensors.size() > inputs_ + count_, "backward_input without a training forward");
    Tensors roots;
    Tensors root_grads;
    for (std::size_t i = inputs_ + count_; i < saved.tensors.size(); ++i) {
      const at::Tensor& output = saved.tensors[i];
      if (!output.requires_grad()) continue;  // the number of tokens beside a loss
      roots.push_back(output);
      root_grads.push_back(output_grads.empty() ? at::full_like(output, pass.loss_scale) : output_grads.at(i - inputs_ - count_));
    }
    saved.tensors.resize(inputs_ + count_);
    Tensors shown;  // no gradients are made of buffers
    for (std::size_t i = buffers_.size(); i-- > 0;) {
      const auto place = saved.tensors.begin() + static_cast<std::ptrdiff_t>(inputs_ + buffers_[i]);
      shown.push_back(std::move(*place));
      saved.tensors.erase(place);
    }
    Tensors grads = torch::autograd::grad(roots, saved.tensors, root_grads, false, false, /*allow_unused=*/true);
    for (const std::size_t buffer : buffers_) {
      grads.insert(grads.begin() + static_cast<std::ptrdiff_t>(inputs_ + buffer), std::move(shown.back()));
      shown.pop_back();
    }
    Tensors input_grads;
    for (std::size_t i = 0; i < inputs_; ++i)
      input_grads.push_back(grads[i].defined() ? grads[i] : at::zeros_like(saved.tensors[i].detach()));
    saved.tensors.assign(grads.begin() + static_cast<std::ptrdiff_t>(inputs_), grads.end());
    return input_grads;
  }

  void backward_weight(Saved& saved, const Pass& pass) override {
    ensure(saved.tensors.size() == count_, "backward_weight without backward_input");
    for (std::size_t i = 0; i < count_; ++i)
      if (saved.tensors[i].defined())
        parameters_[i].grad.add_(saved.tensors[i], parameters_[i].spec->buffer_momentum > 0 ? pass.sample_scale : 1.0);
    saved.tensors.clear();
  }

 private:
  // Shares the elements, and nothing of the graph that made them.
  static at::Tensor leaf(const at::Tensor& tensor, const Pass& pass) {
    at::Tensor out = tensor.detach();
    return pass.training && out.is_floating_point() ? out.requires_grad_(true) : out;
  }

  // What a pass shows of the buffers, which stands behind its outputs.
  Tensors taken_from(Tensors& outputs) const {
    if (outputs.size() < buffers_.size())
      throw Error(ErrorCode::invalid_config, text("block ", name_, " returns ", outputs.size(), " tensors"), {},
                  text("its outputs, and behind them what its samples show of its ", buffers_.size(), " buffers"));
    const auto first = outputs.end() - static_cast<std::ptrdiff_t>(buffers_.size());
    Tensors shown;
    for (auto one = first; one != outputs.end(); ++one) shown.push_back(one->detach());
    outputs.erase(first, outputs.end());
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const Parameter& buffer = parameters_[buffers_[i]];
      if (shown[i].sizes() == buffer.grad.sizes() && shown[i].scalar_type() == at::kFloat) continue;
      throw Error(ErrorCode::invalid_config,
                  text("block ", name_, " returns ", shown[i].scalar_type(), " ", shown[i].sizes(), " for its buffer ", buffer.name), {},
                  text("Float ", buffer.grad.sizes(), ", the sum over the samples"));
    }
    return shown;
  }

  const std::size_t inputs_;
  const std::size_t count_;
  std::vector<std::size_t> buffers_;  // indices of parameters
  const std::string name_;
  const ForwardFunction forward_;
  std::vector<Parameter> parameters_;
};

}  // namespace

std::unique_ptr<Block> make_autograd_block(const model::BlockSpec& spec, ForwardFunction forward) {
  return std::make_unique<AutogradBlock>(spec, std::move(forward));
}

}  // namespace tessera::nn
