// Internal: an AdamW step as factors that every element is computed with.
#pragma once

#include <cmath>

#include "nn/optimizer.hpp"

namespace tessera::nn::kernels {

// With g = grad * grad_scale: m += first_share * (g - m); v = beta2 * v + second_share * g^2;
// master = decay * master - step_size * m / (sqrt(v) * correction + epsilon).
struct AdamWFactors {
  float grad_scale, decay, first_share, beta2, second_share, step_size, correction, epsilon;
};

inline AdamWFactors factors_of(const AdamW& options) {
  const double correction1 = 1.0 - std::pow(options.beta1, static_cast<double>(options.step));
  const double correction2 = 1.0 - std::pow(options.beta2, static_cast<double>(options.step));
  return {static_cast<float>(options.grad_scale),           static_cast<float>(1.0 - options.lr * options.weight_decay),
          static_cast<float>(1.0 - options.beta1),          static_cast<float>(options.beta2),
          static_cast<float>(1.0 - options.beta2),          static_cast<float>(options.lr / correction1),
          static_cast<float>(1.0 / std::sqrt(correction2)), static_cast<float>(options.epsilon)};
}

}  // namespace tessera::nn::kernels
