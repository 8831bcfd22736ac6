// GELU (Hendrycks and Gimpel 2016): hidden = gelu(x), or gelu(gate) * up where x holds both (Shazeer 2020). hidden is
// [rows, width]; x is [rows, width], or [rows, 2*width] with the gate first in each row.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn::kernels {

// x times the normal distribution function of x, or its approximation by a tanh, which is up to 5e-4 off.
enum class GeluForm { tanh, exact };

void gelu(const at::Tensor& x, at::Tensor& hidden, GeluForm form = GeluForm::tanh);
// In one pass over the memory: x becomes its own gradient, and `hidden`, which holds the gradient of the output, becomes the output.
void gelu_backward(at::Tensor& x, at::Tensor& hidden, GeluForm form = GeluForm::tanh);

}  // namespace tessera::nn::kernels
