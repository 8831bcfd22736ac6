// Fused optimizer kernels over flat buffers: one pass through memory per step, parallel over the process's threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <span>

namespace tessera::nn {

struct AdamW {
  double lr;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;  // decoupled (Loshchilov and Hutter 2019)
  std::int64_t step;    // 1-based, for bias correction
  double grad_scale;    // multiplies the gradient first: the clipping factor
};

// All tensors f32, 1-d, same length. `compute` is undefined, or bf16 of that length and receives the rounded master.
// Element for element the result of torch.optim.AdamW (single tensor, foreach=false) up to rounding.
void adamw_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq, at::Tensor& compute,
                const AdamW& options);

struct Sgd {
  double lr;
  double momentum;
  double weight_decay;  // times the weight, added to the scaled gradient: so it enters the momentum, as in torch.optim.SGD
  bool first_step;      // the momentum buffer starts as the gradient
  double grad_scale;
};
void sgd_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& momentum, at::Tensor& compute, const Sgd& options);

// Sum of squares in double, in an order that depends on the length alone. NaN and infinity come through.
double squared_norm(const at::Tensor& flat);
// Their sum, in the order of the tensors. All lie on one device, which is waited for once.
double squared_norm(std::span<const at::Tensor> tensors);

}  // namespace tessera::nn
