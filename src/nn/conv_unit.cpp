#include "nn/conv_unit.hpp"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution_backward.h>
#include <array>

namespace tessera::nn {
namespace {

enum Gradients { kOfInput, kOfParameters };

std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients(Gradients which, const at::Tensor& grad, const at::Tensor& maps,
                                                         const at::Tensor& weight, std::int64_t stride, std::int64_t padding, bool biased) {
  const bool parameters = which == kOfParameters;
  return at::convolution_backward(grad, maps, weight, at::IntArrayRef(weight.size(0)), {stride, stride}, {padding, padding}, {1, 1}, false,
                                  {0, 0}, 1, {!parameters, parameters, parameters && biased});
}

}  // namespace

ConvUnit::ConvUnit(Form form) : form_(form) {
  if (form.normalized) norm_.emplace();
}

void ConvUnit::bind(ParameterRow& parameters) {
  own_ = parameters.take(form_.biased ? 2 : 1);
  if (norm_) norm_->bind(parameters);
}

at::Tensor ConvUnit::forward(const at::Tensor& maps, std::span<at::Tensor> kept, const Pass& pass) const {
  at::Tensor out = at::conv2d(maps, weight().value, form_.biased ? own_[1].value : at::Tensor(), form_.stride, padding());
  if (pass.training) kept[kInput] = maps;
  return norm_ ? norm_->forward(out, kept.subspan(kNorm), pass) : out;
}

void ConvUnit::end_at_data(const at::Tensor& grad, std::span<at::Tensor> kept, const Pass& pass) const {
  kept[kOutputGrad] = norm_ ? norm_->backward_input(grad, kept.subspan(kNorm), pass) : grad;
}

at::Tensor ConvUnit::backward_input(const at::Tensor& grad, std::span<at::Tensor> kept, const Pass& pass) const {
  end_at_data(grad, kept, pass);
  return std::get<0>(gradients(kOfInput, kept[kOutputGrad], kept[kInput], weight().value, form_.stride, padding(), form_.biased));
}

void ConvUnit::backward_weight(std::span<at::Tensor> kept, const Pass& pass) const {
  const auto made = gradients(kOfParameters, kept[kOutputGrad], kept[kInput], weight().value, form_.stride, padding(), form_.biased);
  weight().grad.add_(std::get<1>(made));
  if (form_.biased) own_[1].grad.add_(std::get<2>(made));
  if (norm_) norm_->backward_weight(kept.subspan(kNorm), pass);
  for (at::Tensor& tensor : kept) tensor.reset();
}

}  // namespace tessera::nn
