#include "nn/kernels/cross_entropy.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <cmath>

#include "nn/kernels/aten/kernels.hpp"
#include "nn/kernels/cuda/kernels.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/dispatch.hpp"

namespace tessera::nn::kernels {
namespace {

TESSERA_MULTIVERSION float row_maximum(const float* x, std::int64_t width) {
  float lanes[kLanes];
  for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] = x[0];
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  }
  float best = lanes[0];
  for (std::int64_t l = 1; l < kLanes; ++l) best = std::max(best, lanes[l]);
  for (; i < width; ++i) best = std::max(best, x[i]);
  return best;
}

TESSERA_MULTIVERSION float row_exponentials(float* x, float maximum, std::int64_t width) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      x[i + l] = fast_exp(x[i + l] - maximum);
      lanes[l] += x[i + l];
    }
  }
  for (; i < width; ++i) {
    x[i] = fast_exp(x[i] - maximum);
    lanes[i % kLanes] += x[i];
  }
  return sum_lanes(lanes);
}

TESSERA_MULTIVERSION void row_scale(const float* x, float factor, float* y, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) y[i] = x[i] * factor;
}
TESSERA_MULTIVERSION void row_scale(const float* x, float factor, Bf16* y, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) store(y[i], x[i] * factor);
}

bool holds(std::int64_t target, std::int64_t first_column, std::int64_t width) {
  return target >= first_column && target < first_column + width;
}

}  // namespace

void cross_entropy_maximum(const at::Tensor& logits, const at::Tensor& targets, std::int64_t first_column, at::Tensor& maximum,
                           at::Tensor& target_logit) {
  const Kernels kernels = kernels_for(logits);
  if (kernels == Kernels::cuda) return cuda::cross_entropy_maximum(logits, targets, first_column, maximum, target_logit);
  if (kernels == Kernels::aten) return aten::cross_entropy_maximum(logits, targets, first_column, maximum, target_logit);
  const std::int64_t width = logits.size(1);
  const std::int64_t* wanted = data<std::int64_t>(targets);
  at::parallel_for(0, logits.size(0), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* row = data<float>(logits) + r * width;
      data<float>(maximum)[r] = row_maximum(row, width);
      data<float>(target_logit)[r] = holds(wanted[r], first_column, width) ? row[wanted[r] - first_column] : 0.0f;
    }
  });
}

void cross_entropy_exponentials(at::Tensor& logits, const at::Tensor& maximum, at::Tensor& sum) {
  const Kernels kernels = kernels_for(logits);
  if (kernels == Kernels::cuda) return cuda::cross_entropy_exponentials(logits, maximum, sum);
  if (kernels == Kernels::aten) return aten::cross_entropy_exponentials(logits, maximum, sum);
  const std::int64_t width = logits.size(1);
  at::parallel_for(0, logits.size(0), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      data<float>(sum)[r] = row_exponentials(data<float>(logits) + r * width, data<float>(maximum)[r], width);
    }
  });
}

void cross_entropy_gradient(const at::Tensor& exponentials, const at::Tensor& targets, std::int64_t first_column, const at::Tensor& sum,
                            double scale, at::Tensor& gradient) {
  const Kernels kernels = kernels_for(exponentials);
  if (kernels == Kernels::cuda) return cuda::cross_entropy_gradient(exponentials, targets, first_column, sum, scale, gradient);
  if (kernels == Kernels::aten) return aten::cross_entropy_gradient(exponentials, targets, first_column, sum, scale, gradient);
  const std::int64_t width = exponentials.size(1);
  const std::int64_t* wanted = data<std::int64_t>(targets);
  dispatch(gradient, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, exponentials.size(0), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const float* row = data<float>(exponentials) + r * width;
        T* out = data<T>(gradient) + r * width;
        if (wanted[r] < 0) {
          std::fill(out, out + width, T{});
          continue;
        }
        const float factor = static_cast<float>(scale / data<float>(sum)[r]);
        const bool here = holds(wanted[r], first_column, width);
        const float target = here ? row[wanted[r] - first_column] * factor - static_cast<float>(scale) : 0.0f;
        row_scale(row, factor, out, width);
        if (here) store(out[wanted[r] - first_column], target);
      }
    });
  });
}

LossSum::LossSum(const at::Tensor& like)
    : loss(at::zeros({}, like.options().dtype(at::kDouble))), tokens(at::zeros({}, like.options().dtype(at::kLong))) {}

void add_losses(const at::Tensor& targets, const at::Tensor& maximum, const at::Tensor& sum, const at::Tensor& target_logit,
                LossSum& total) {
  if (!use_cpu_kernels(sum)) return aten::add_losses(targets, maximum, sum, target_logit, total);
  double& loss = *data<double>(total.loss);
  std::int64_t& tokens = *data<std::int64_t>(total.tokens);
  for (std::int64_t r = 0; r < targets.numel(); ++r) {
    if (data<std::int64_t>(targets)[r] < 0) continue;
    const double lse = std::log(static_cast<double>(data<float>(sum)[r])) + static_cast<double>(data<float>(maximum)[r]);
    loss += lse - static_cast<double>(data<float>(target_logit)[r]);
    ++tokens;
  }
}

}  // namespace tessera::nn::kernels
