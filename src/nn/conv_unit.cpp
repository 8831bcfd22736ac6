#include "nn/conv_unit.hpp"

#include "nn/kernels/convolution.hpp"

namespace tessera::nn {

ConvUnit::ConvUnit(Form form) : form_(form) {
  if (form.normalized) norm_.emplace();
}

void ConvUnit::bind(ParameterRow& parameters) {
  own_ = parameters.take(form_.biased ? 2 : 1);
  if (norm_) norm_->bind(parameters);
}

at::Tensor ConvUnit::forward(const at::Tensor& maps, std::span<at::Tensor> kept, const Pass& pass) const {
  at::Tensor out = kernels::convolve(maps, weight().value, form_.biased ? own_[1].value : at::Tensor(), form_.stride);
  if (pass.training) kept[kInput] = maps;
  return norm_ ? norm_->forward(out, kept.subspan(kNorm), pass) : out;
}

void ConvUnit::end_at_data(const at::Tensor& grad, std::span<at::Tensor> kept, const Pass& pass) const {
  kept[kOutputGrad] = norm_ ? norm_->backward_input(grad, kept.subspan(kNorm), pass) : grad;
}

at::Tensor ConvUnit::backward_input(const at::Tensor& grad, std::span<at::Tensor> kept, const Pass& pass) const {
  end_at_data(grad, kept, pass);
  return kernels::convolve_backward_maps(kept[kOutputGrad], kept[kInput], weight().value, form_.stride);
}

void ConvUnit::backward_weight(std::span<at::Tensor> kept, const Pass& pass) const {
  kernels::convolve_backward_weight(kept[kOutputGrad], kept[kInput], weight().grad, form_.biased ? own_[1].grad : at::Tensor(),
                                    form_.stride);
  if (norm_) norm_->backward_weight(kept.subspan(kNorm), pass);
  for (at::Tensor& tensor : kept) tensor.reset();
}

}  // namespace tessera::nn
