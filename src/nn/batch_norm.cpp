#include "nn/batch_norm.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/stack.h>
#include <algorithm>

namespace tessera::nn {
namespace {

constexpr double kEpsilon = 1e-5;
enum Place : std::size_t { kWeight, kBias, kRunningMean, kRunningVariance };

}  // namespace

at::Tensor BatchNorm::value(std::size_t place) const { return parameters_[place].value.to(at::kFloat); }

at::Tensor BatchNorm::forward(const at::Tensor& maps, std::span<at::Tensor> kept, const Pass& pass) const {
  // A pass that saves nothing because it is computed again later belongs to training, too.
  if (!pass.training && !pass.drops)
    return std::get<0>(
        at::native_batch_norm(maps, value(kWeight), value(kBias), value(kRunningMean), value(kRunningVariance), false, 0, kEpsilon));
  auto [out, mean, inverse_deviation] = at::native_batch_norm(maps, value(kWeight), value(kBias), {}, {}, true, 0, kEpsilon);
  if (!pass.training) return out;
  const auto samples = static_cast<double>(maps.size(0));
  const std::int64_t values = maps.numel() / maps.size(1);
  const double unbiased = static_cast<double>(values) / static_cast<double>(std::max<std::int64_t>(1, values - 1));
  kept[kShown] = at::stack({mean * samples, (inverse_deviation.pow(-2) - kEpsilon) * (unbiased * samples)});
  kept[kInput] = maps;
  kept[kMean] = std::move(mean);
  kept[kInverseDeviation] = std::move(inverse_deviation);
  return out;
}

at::Tensor BatchNorm::backward_input(const at::Tensor& grad, std::span<at::Tensor> kept) const {
  auto [input_grad, weight_grad, bias_grad] = at::native_batch_norm_backward(grad, kept[kInput], value(kWeight), {}, {}, kept[kMean],
                                                                             kept[kInverseDeviation], true, kEpsilon, {true, true, true});
  kept[kInput].reset();
  kept[kMean] = std::move(weight_grad);
  kept[kInverseDeviation] = std::move(bias_grad);
  return input_grad;
}

void BatchNorm::backward_weight(std::span<at::Tensor> kept, const Pass& pass) const {
  parameters_[kWeight].grad.add_(kept[kMean]);
  parameters_[kBias].grad.add_(kept[kInverseDeviation]);
  parameters_[kRunningMean].grad.add_(kept[kShown][0], pass.sample_scale);
  parameters_[kRunningVariance].grad.add_(kept[kShown][1], pass.sample_scale);
}

}  // namespace tessera::nn
