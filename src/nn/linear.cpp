#include "nn/linear.hpp"

#include "nn/kernels/bias.hpp"
#include "nn/kernels/gemm.hpp"
#include "nn/parameter_row.hpp"

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

StackedLinear::Stored stored_maps(const model::BlockSpec& spec) {
  return has(spec, "maps_in_out") ? StackedLinear::Stored::in_out : StackedLinear::Stored::out_in;
}

void StackedLinear::bind(std::span<const Parameter> weights, std::span<const Parameter> biases) {
  parts_.clear();
  biases_.clear();
  out_width_ = 0;
  std::int64_t column = 0;
  for (const Parameter& bias : biases) {
    biases_.push_back({bias.value, bias.grad, column, bias.value.size(0)});
    column += bias.value.size(0);
  }
  const bool stacks = stored_ == Stored::out_in;
  for (const Parameter& parameter : weights) {
    const std::int64_t width = parameter.value.size(stacks ? 0 : 1);
    const bool joins =
        stacks && !parts_.empty() && adjacent(parts_.back().value, parameter.value) && adjacent(parts_.back().grad, parameter.grad);
    if (joins) {
      parts_.back().value = join(parts_.back().value, parameter.value);
      parts_.back().grad = join(parts_.back().grad, parameter.grad);
      parts_.back().width += width;
    } else {
      parts_.push_back({parameter.value, parameter.grad, out_width_, width});
    }
    out_width_ += width;
  }
}

at::Tensor StackedLinear::out_in(const Part& part) const { return stored_ == Stored::out_in ? part.value : part.value.t(); }

void StackedLinear::forward(const at::Tensor& x, at::Tensor& y) const {
  for (const Part& part : parts_) kernels::gemm(x, out_in(part).t(), y.narrow(1, part.column, part.width));
  for (const Part& bias : biases_) kernels::add_bias(y.narrow(1, bias.column, bias.width), bias.value);
}

void StackedLinear::backward_input(const at::Tensor& dy, at::Tensor& dx) const {
  bool accumulate = false;
  for (const Part& part : parts_) {
    kernels::gemm(dy.narrow(1, part.column, part.width), out_in(part), dx, accumulate);
    accumulate = true;
  }
}

void StackedLinear::backward_weight(const at::Tensor& dy, const at::Tensor& x) const {
  for (const Part& part : parts_) {
    const at::Tensor own = dy.narrow(1, part.column, part.width);
    if (stored_ == Stored::out_in)
      kernels::gemm(own.t(), x, part.grad, true);
    else
      kernels::gemm(x.t(), own, part.grad, true);
  }
  for (const Part& bias : biases_) kernels::bias_backward(dy.narrow(1, bias.column, bias.width), bias.grad);
}

}  // namespace tessera::nn
