#include "nn/optimizer.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/stack.h>
#include <algorithm>
#include <cmath>
#include <vector>

#include "nn/kernels/adamw.hpp"
#include "nn/kernels/aten/kernels.hpp"
#include "nn/kernels/cuda/kernels.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/dispatch.hpp"

namespace tessera::nn {
namespace {

using kernels::AdamWFactors;
using kernels::Bf16;

TESSERA_MULTIVERSION void adamw_range(float* __restrict master, const float* __restrict grad, float* __restrict first,
                                      float* __restrict second, std::int64_t count, const AdamWFactors& f) {
  const AdamWFactors factors = f;
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * factors.grad_scale;
    const float m = first[i] + factors.first_share * (g - first[i]);
    const float v = second[i] * factors.beta2 + factors.second_share * g * g;
    first[i] = m;
    second[i] = v;
    master[i] = master[i] * factors.decay - factors.step_size * (m / (std::sqrt(v) * factors.correction + factors.epsilon));
  }
}

struct SgdFactors {
  float grad_scale, weight_decay, momentum, lr;
  bool first_step;
};

TESSERA_MULTIVERSION void sgd_range(float* __restrict master, const float* __restrict grad, float* __restrict buffer, std::int64_t count,
                                    const SgdFactors& f) {
  const SgdFactors factors = f;
  if (buffer == nullptr) {
    for (std::int64_t i = 0; i < count; ++i) {
      master[i] -= factors.lr * (grad[i] * factors.grad_scale + factors.weight_decay * master[i]);
    }
    return;
  }
  const float keep = factors.first_step ? 0.0f : factors.momentum;
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * factors.grad_scale + factors.weight_decay * master[i];
    const float b = (factors.first_step ? 0.0f : keep * buffer[i]) + g;
    buffer[i] = b;
    master[i] -= factors.lr * b;
  }
}

TESSERA_MULTIVERSION void round_range(const float* __restrict from, Bf16* __restrict to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) kernels::store(to[i], from[i]);
}

TESSERA_MULTIVERSION double square_sum_range(const float* x, std::int64_t count) {
  double lanes[kernels::kLanes] = {};
  std::int64_t i = 0;
  for (; i + kernels::kLanes <= count; i += kernels::kLanes) {
    for (std::int64_t l = 0; l < kernels::kLanes; ++l) {
      lanes[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
    }
  }
  for (; i < count; ++i) lanes[i % kernels::kLanes] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

// Small enough that the rounded copy is made from the cache, large enough to hide the loop's overhead.
constexpr std::int64_t kBlock = 8192;

template <typename Body>
void for_each_block(std::int64_t count, const Body& body) {
  at::parallel_for(0, (count + kBlock - 1) / kBlock, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) body(b, b * kBlock, std::min(kBlock, count - b * kBlock));
  });
}

double squared_norm_on_cpu(const at::Tensor& flat) {
  const std::int64_t count = flat.numel();
  std::vector<double> sums(static_cast<std::size_t>((count + kBlock - 1) / kBlock), 0.0);
  for_each_block(count, [&](std::int64_t block, std::int64_t first, std::int64_t length) {
    sums[static_cast<std::size_t>(block)] = square_sum_range(kernels::data<float>(flat) + first, length);
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

void adamw_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq, at::Tensor& compute,
                const AdamW& options) {
  const kernels::Kernels chosen = kernels::kernels_for(master);
  if (chosen == kernels::Kernels::cuda) return kernels::cuda::adamw_step(master, grad, exp_avg, exp_avg_sq, compute, options);
  if (chosen == kernels::Kernels::aten) return kernels::aten::adamw_step(master, grad, exp_avg, exp_avg_sq, compute, options);
  const AdamWFactors factors = kernels::factors_of(options);
  float* value = kernels::data<float>(master);
  for_each_block(master.numel(), [&](std::int64_t, std::int64_t first, std::int64_t count) {
    adamw_range(value + first, kernels::data<float>(grad) + first, kernels::data<float>(exp_avg) + first,
                kernels::data<float>(exp_avg_sq) + first, count, factors);
    if (compute.defined()) round_range(value + first, kernels::data<Bf16>(compute) + first, count);
  });
}

void sgd_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& momentum, at::Tensor& compute, const Sgd& options) {
  if (!kernels::use_cpu_kernels(master)) return kernels::aten::sgd_step(master, grad, momentum, compute, options);
  const SgdFactors factors{static_cast<float>(options.grad_scale), static_cast<float>(options.weight_decay),
                           static_cast<float>(options.momentum), static_cast<float>(options.lr), options.first_step};
  float* value = kernels::data<float>(master);
  const bool has_buffer = options.momentum != 0.0 && momentum.defined();
  for_each_block(master.numel(), [&](std::int64_t, std::int64_t first, std::int64_t count) {
    sgd_range(value + first, kernels::data<float>(grad) + first, has_buffer ? kernels::data<float>(momentum) + first : nullptr, count,
              factors);
    if (compute.defined()) round_range(value + first, kernels::data<Bf16>(compute) + first, count);
  });
}

double squared_norm(const at::Tensor& flat) { return squared_norm(std::span(&flat, 1)); }

double squared_norm(std::span<const at::Tensor> tensors) {
  std::vector<at::Tensor> sums;
  double total = 0;
  for (const at::Tensor& flat : tensors) {
    const kernels::Kernels chosen = kernels::kernels_for(flat);
    if (chosen == kernels::Kernels::cpu)
      total += squared_norm_on_cpu(flat);
    else
      sums.push_back(chosen == kernels::Kernels::cuda ? kernels::cuda::squared_norm(flat) : kernels::aten::squared_norm(flat));
  }
  return sums.empty() ? total : at::stack(sums).sum().item<double>();
}

}  // namespace tessera::nn
