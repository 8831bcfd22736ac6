#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "nn/kernels/aten/kernels.hpp"

namespace tessera::nn::kernels::aten {

void gemm(const at::Tensor& a, const at::Tensor& b, at::Tensor c, bool accumulate) {
  if (a.scalar_type() != c.scalar_type() && c.is_cuda()) {
    // GPUs add up in f32 what they multiply in 16 bits, and can leave it so.
    at::addmm_out(c, c, a, b, c.scalar_type(), accumulate ? 1 : 0);
  } else if (a.scalar_type() != c.scalar_type()) {
    const at::Tensor product = at::mm(a, b);
    accumulate ? c.add_(product) : c.copy_(product);
  } else if (accumulate) {
    c.addmm_(a, b);
  } else {
    at::mm_out(c, a, b);
  }
}

void bias_backward(const at::Tensor& dy, const at::Tensor& bias_grad) { bias_grad.add_(dy.sum(0, false, at::kFloat)); }

}  // namespace tessera::nn::kernels::aten
