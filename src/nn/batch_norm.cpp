#include "nn/batch_norm.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <utility>

#include "nn/tensor_parallel.hpp"

namespace tessera::nn {
namespace {

constexpr double kEpsilon = 1e-5;
enum Place : std::size_t { kWeight, kBias, kRunningMean, kRunningVariance };

bool over_replicas(const Pass& pass) { return pass.replica_group && pass.replica_group.size() > 1; }

// What the samples show of the running statistics, where each channel has so many values in all.
at::Tensor shown(const at::Tensor& mean, const at::Tensor& variance, std::int64_t samples, double values) {
  const double unbiased = values / std::max(1.0, values - 1);
  const auto weight = static_cast<double>(samples);
  return at::stack({mean * weight, variance * (unbiased * weight)});
}

// Of each channel over all replicas; the number of values, f32 [1].
struct Statistics {
  at::Tensor mean, variance, values;
};

// Means and squared distances from them, and not sums of values and of squares, which cancel each other. Replicas count by their values,
// for they need not have as many samples. Every replica adds up the same numbers in the same order.
Statistics gathered(const at::Tensor& maps, const Pass& pass) {
  const std::int64_t channels = maps.size(1);
  const at::TensorOptions f32 = maps.options().dtype(at::kFloat);
  // Maps of 16 bits get statistics of 32 where these have them.
  const at::Tensor unused = at::zeros({channels}, f32);
  const auto [mean, variance] = at::batch_norm_update_stats(maps, unused, unused.clone(), 0);
  const auto own_values = static_cast<double>(maps.numel() / channels);
  const at::Tensor own = at::cat({mean, variance, at::full({1}, own_values, f32)});
  at::Tensor all = at::empty({pass.replica_group.size(), own.size(0)}, f32);
  wait(all_gather(pass.replica_group, own, all), pass);
  const at::Tensor counts = all.narrow(1, 2 * channels, 1);
  Statistics out{{}, {}, counts.sum(0)};
  const at::Tensor shares = counts / out.values;
  const at::Tensor means = all.narrow(1, 0, channels);
  out.mean = (means * shares).sum(0);
  out.variance = ((all.narrow(1, channels, channels) + (means - out.mean).square()) * shares).sum(0);
  return out;
}

at::Tensor by_channel(const at::Tensor& values) { return values.view({-1, 1, 1}); }

}  // namespace

at::Tensor BatchNorm::value(std::size_t place) const { return parameters_[place].value.to(at::kFloat); }

at::Tensor BatchNorm::forward(const at::Tensor& maps, std::span<at::Tensor> kept, const Pass& pass) const {
  // A pass that saves nothing because it is computed again later belongs to training, too.
  if (!pass.training && !pass.drops)
    return std::get<0>(
        at::native_batch_norm(maps, value(kWeight), value(kBias), value(kRunningMean), value(kRunningVariance), false, 0, kEpsilon));
  if (over_replicas(pass)) return forward_over_replicas(maps, kept, pass);
  auto [out, mean, inverse_deviation] = at::native_batch_norm(maps, value(kWeight), value(kBias), {}, {}, true, 0, kEpsilon);
  if (!pass.training) return out;
  kept[kShown] = shown(mean, inverse_deviation.pow(-2) - kEpsilon, maps.size(0),
                       static_cast<double>(maps.numel()) / static_cast<double>(maps.size(1)));
  kept[kInput] = maps;
  kept[kMean] = std::move(mean);
  kept[kInverseDeviation] = std::move(inverse_deviation);
  return out;
}

at::Tensor BatchNorm::forward_over_replicas(const at::Tensor& maps, std::span<at::Tensor> kept, const Pass& pass) const {
  Statistics all = gathered(maps, pass);
  at::Tensor out = std::get<0>(at::native_batch_norm(maps, value(kWeight), value(kBias), all.mean, all.variance, false, 0, kEpsilon));
  if (!pass.training) return out;
  kept[kShown] = shown(all.mean, all.variance, maps.size(0), all.values.item<double>());
  kept[kInput] = maps;
  kept[kInverseDeviation] = (all.variance + kEpsilon).rsqrt();
  kept[kMean] = std::move(all.mean);
  kept[kValues] = std::move(all.values);
  return out;
}

at::Tensor BatchNorm::backward_input(const at::Tensor& grad, std::span<at::Tensor> kept, const Pass& pass) const {
  if (over_replicas(pass)) return backward_over_replicas(grad, kept, pass);
  auto [input_grad, weight_grad, bias_grad] = at::native_batch_norm_backward(grad, kept[kInput], value(kWeight), {}, {}, kept[kMean],
                                                                             kept[kInverseDeviation], true, kEpsilon, {true, true, true});
  kept[kInput].reset();
  kept[kMean] = std::move(weight_grad);
  kept[kInverseDeviation] = std::move(bias_grad);
  return input_grad;
}

at::Tensor BatchNorm::backward_over_replicas(const at::Tensor& grad, std::span<at::Tensor> kept, const Pass& pass) const {
  const at::Tensor maps = std::exchange(kept[kInput], {});
  const at::Tensor mean = kept[kMean];
  const at::Tensor inverse_deviation = kept[kInverseDeviation];
  // As if mean and deviation were given; what is missing of the input's gradient is what the samples do to them.
  auto [input_grad, weight_grad, bias_grad] = at::native_batch_norm_backward(
      grad, maps, value(kWeight), mean, inverse_deviation.pow(-2) - kEpsilon, {}, {}, false, kEpsilon, {true, true, true});
  at::Tensor sums = at::stack({weight_grad, bias_grad});
  wait(nn::all_reduce(pass.replica_group, sums), pass);
  sums /= std::exchange(kept[kValues], {});
  const at::Tensor scale = value(kWeight) * inverse_deviation;
  const at::Tensor by_input = -scale * inverse_deviation * sums[0];
  const at::Tensor constant = -scale * sums[1] - by_input * mean;
  input_grad.add_(at::addcmul(by_channel(constant), maps, by_channel(by_input)));
  // Summed over replicas with all gradients, later.
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
