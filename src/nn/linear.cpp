#include "nn/linear.hpp"

#include "nn/kernels/bias.hpp"
#include "nn/kernels/gemm.hpp"

namespace tessera::nn {
namespace {

bool adjacent(const at::Tensor& first, const at::Tensor& second) {
  return first.storage().is_alias_of(second.storage()) && first.size(1) == second.size(1) &&
         first.storage_offset() + first.numel() == second.storage_offset();
}

at::Tensor join(const at::Tensor& first, const at::Tensor& second) {
  return first.as_strided({first.size(0) + second.size(0), first.size(1)}, {first.size(1), 1}, first.storage_offset());
}

}  // namespace

void StackedLinear::bind(std::span<const Parameter> weights, std::span<const Parameter> biases) {
  parts_.clear();
  biases_.clear();
  out_width_ = 0;
  std::int64_t column = 0;
  for (const Parameter& bias : biases) {
    biases_.push_back({bias.value, bias.grad, column});
    column += bias.value.size(0);
  }
  for (const Parameter& parameter : weights) {
    const bool joins = !parts_.empty() && adjacent(parts_.back().value, parameter.value) && adjacent(parts_.back().grad, parameter.grad);
    if (joins) {
      parts_.back().value = join(parts_.back().value, parameter.value);
      parts_.back().grad = join(parts_.back().grad, parameter.grad);
    } else {
      parts_.push_back({parameter.value, parameter.grad, out_width_});
    }
    out_width_ += parameter.value.size(0);
  }
}

void StackedLinear::forward(const at::Tensor& x, at::Tensor& y) const {
  for (const Part& part : parts_) kernels::gemm(x, part.value.t(), y.narrow(1, part.column, part.value.size(0)));
  for (const Part& bias : biases_) kernels::add_bias(y.narrow(1, bias.column, bias.value.size(0)), bias.value);
}

void StackedLinear::backward_input(const at::Tensor& dy, at::Tensor& dx) const {
  bool accumulate = false;
  for (const Part& part : parts_) {
    kernels::gemm(dy.narrow(1, part.column, part.value.size(0)), part.value, dx, accumulate);
    accumulate = true;
  }
}

void StackedLinear::backward_weight(const at::Tensor& dy, const at::Tensor& x) const {
  for (const Part& part : parts_) kernels::gemm(dy.narrow(1, part.column, part.value.size(0)).t(), x, part.grad, true);
  for (const Part& bias : biases_) kernels::bias_backward(dy.narrow(1, bias.column, bias.value.size(0)), bias.grad);
}

}  // namespace tessera::nn
