#include "nn/kernels/swiglu.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include "nn/kernels/aten/kernels.hpp"

namespace tessera::nn::kernels::aten {
namespace {

struct Halves {
  at::Tensor gate, up;  // views [rows, width]
};

Halves halves_of(const at::Tensor& gate_up) {
  const std::int64_t width = gate_up.size(1) / 2;
  return {gate_up.narrow(1, 0, width), gate_up.narrow(1, width, width)};
}

}  // namespace

void swiglu(const at::Tensor& gate_up, at::Tensor& hidden) {
  const auto [gate, up] = halves_of(gate_up);
  at::mul_out(hidden, at::silu(gate.to(at::kFloat)), up);
}

void swiglu_backward(at::Tensor& gate_up, at::Tensor& hidden) {
  const auto [gate, up] = halves_of(gate_up);
  const at::Tensor wide_gate = gate.to(at::kFloat);
  const at::Tensor sigmoid = at::sigmoid(wide_gate);
  const at::Tensor silu = wide_gate * sigmoid;
  const at::Tensor gate_grad = (sigmoid + silu * (1 - sigmoid)).mul_(up).mul_(hidden);
  const at::Tensor activated = silu * up;
  up.copy_(silu * hidden);
  gate.copy_(gate_grad);
  hidden.copy_(activated);
}

}  // namespace tessera::nn::kernels::aten
