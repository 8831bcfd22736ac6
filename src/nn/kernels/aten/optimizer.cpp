#include "nn/optimizer.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <cmath>

#include "nn/kernels/aten/kernels.hpp"

namespace tessera::nn::kernels::aten {

void adamw_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq, at::Tensor& compute,
                const AdamW& options) {
  const double correction1 = 1.0 - std::pow(options.beta1, static_cast<double>(options.step));
  const double correction2 = 1.0 - std::pow(options.beta2, static_cast<double>(options.step));
  const at::Tensor scaled = grad * options.grad_scale;
  exp_avg.lerp_(scaled, 1.0 - options.beta1);
  exp_avg_sq.mul_(options.beta2).addcmul_(scaled, scaled, 1.0 - options.beta2);
  const at::Tensor divisor = exp_avg_sq.sqrt().mul_(1.0 / std::sqrt(correction2)).add_(options.epsilon);
  master.mul_(1.0 - options.lr * options.weight_decay).addcdiv_(exp_avg, divisor, -options.lr / correction1);
  if (compute.defined()) compute.copy_(master);
}

void sgd_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& momentum, at::Tensor& compute, const Sgd& options) {
  const at::Tensor step = (grad * options.grad_scale).add_(master, options.weight_decay);
  if (options.momentum == 0.0 || !momentum.defined()) {
    master.sub_(step, options.lr);
  } else {
    options.first_step ? momentum.copy_(step) : momentum.mul_(options.momentum).add_(step);
    master.sub_(momentum, options.lr);
  }
  if (compute.defined()) compute.copy_(master);
}

at::Tensor squared_norm(const at::Tensor& flat) { return at::linalg_vector_norm(flat, 2, {}, false, at::kDouble).square_(); }

}  // namespace tessera::nn::kernels::aten
