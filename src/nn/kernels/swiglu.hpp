// SwiGLU (Shazeer 2020): hidden = silu(gate) * up. gate_up is [rows, 2*width], the gate first in each row.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn::kernels {

void swiglu(const at::Tensor& gate_up, at::Tensor& hidden);
// In one pass over the memory: gate_up becomes its own gradient, and `hidden`, which holds the gradient of the output,
// becomes the output.
void swiglu_backward(at::Tensor& gate_up, at::Tensor& hidden);

}  // namespace tessera::nn::kernels
