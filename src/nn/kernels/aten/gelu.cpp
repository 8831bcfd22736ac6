#include "nn/kernels/gelu.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

#include "nn/kernels/aten/kernels.hpp"

namespace tessera::nn::kernels::aten {
namespace {

const char* name_of(GeluForm form) { return form == GeluForm::tanh ? "tanh" : "none"; }

}  // namespace

void gelu(const at::Tensor& x, at::Tensor& hidden, GeluForm form) {
  const std::int64_t width = hidden.size(1);
  const at::Tensor activated = at::gelu(x.narrow(1, 0, width).to(at::kFloat), name_of(form));
  hidden.copy_(x.size(1) == width ? activated : activated * x.narrow(1, width, width));
}

void gelu_backward(at::Tensor& x, at::Tensor& hidden, GeluForm form) {
  const std::int64_t width = hidden.size(1);
  const at::Tensor gate = x.narrow(1, 0, width);
  const at::Tensor wide_gate = gate.to(at::kFloat);
  const at::Tensor activated = at::gelu(wide_gate, name_of(form));
  const at::Tensor grad = hidden.to(at::kFloat);
  if (x.size(1) == width) {
    gate.copy_(at::gelu_backward(grad, wide_gate, name_of(form)));
    hidden.copy_(activated);
    return;
  }
  const at::Tensor up = x.narrow(1, width, width);
  gate.copy_(at::gelu_backward(grad * up, wide_gate, name_of(form)));
  const at::Tensor output = activated * up;
  up.copy_(activated * grad);
  hidden.copy_(output);
}

}  // namespace tessera::nn::kernels::aten
