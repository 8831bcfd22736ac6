#include "nn/autograd_block.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

namespace tessera::nn {
namespace {

class AutogradBlock final : public Block {
 public:
  AutogradBlock(const model::BlockSpec& spec, ForwardFunction forward)
      : inputs_(spec.inputs.size()), count_(spec.parameters.size()), name_(spec.name), forward_(std::move(forward)) {}

  void bind(std::vector<Parameter> parameters) override {
    ensure(parameters.size() == count_, text(name_, " has ", count_, " parameters"));
    parameters_ = std::move(parameters);
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }

  Tensors forward(const Tensors& inputs, Saved& saved, const Pass& pass) override {
    const at::AutoGradMode mode(pass.training);
    Tensors leaves;
    for (const at::Tensor& input : inputs) leaves.push_back(leaf(input, pass));
    for (const Parameter& parameter : parameters_) leaves.push_back(leaf(parameter.value, pass));
    const auto parameters = leaves.begin() + static_cast<std::ptrdiff_t>(inputs_);
    const Tensors outputs = forward_({leaves.begin(), parameters}, {parameters, leaves.end()}, pass);
    Tensors passed;
    for (const at::Tensor& output : outputs) passed.push_back(output.detach());
    saved.tensors.clear();
    if (!pass.training) return passed;
    saved.tensors = std::move(leaves);
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
    Tensors grads = torch::autograd::grad(roots, saved.tensors, root_grads, false, false, /*allow_unused=*/true);
    Tensors input_grads;
    for (std::size_t i = 0; i < inputs_; ++i)
      input_grads.push_back(grads[i].defined() ? grads[i] : at::zeros_like(saved.tensors[i].detach()));
    saved.tensors.assign(grads.begin() + static_cast<std::ptrdiff_t>(inputs_), grads.end());
    return input_grads;
  }

  void backward_weight(Saved& saved, const Pass&) override {
    ensure(saved.tensors.size() == count_, "backward_weight without backward_input");
    for (std::size_t i = 0; i < count_; ++i)
      if (saved.tensors[i].defined()) parameters_[i].grad.add_(saved.tensors[i]);
    saved.tensors.clear();
  }

 private:
  // Shares the elements, and nothing of the graph that made them.
  static at::Tensor leaf(const at::Tensor& tensor, const Pass& pass) {
    at::Tensor out = tensor.detach();
    return pass.training && out.is_floating_point() ? out.requires_grad_(true) : out;
  }

  const std::size_t inputs_;
  const std::size_t count_;
  const std::string name_;
  const ForwardFunction forward_;
  std::vector<Parameter> parameters_;
};

}  // namespace

std::unique_ptr<Block> make_autograd_block(const model::BlockSpec& spec, ForwardFunction forward) {
  return std::make_unique<AutogradBlock>(spec, std::move(forward));
}

}  // namespace tessera::nn
