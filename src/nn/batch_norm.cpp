#include "nn/batch_norm.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/native_batch_norm.h>
#include <algorithm>

namespace tessera::nn {

at::Tensor batch_norm(const at::Tensor& maps, const BatchNorm& norm, const Pass& pass, Tensors& shown) {
  constexpr double kEpsilon = 1e-5;
  // Statistics of 16-bit maps are in f32 where the parameters are.
  const at::Tensor weight = norm.weight.to(at::kFloat);
  const at::Tensor bias = norm.bias.to(at::kFloat);
  const at::Tensor mean = norm.running_mean.to(at::kFloat);
  const at::Tensor variance = norm.running_var.to(at::kFloat);
  // A pass that saves nothing because it is computed again later belongs to training, too.
  if (!pass.training && !pass.drops) {
    shown.insert(shown.end(), {mean, variance});
    return std::get<0>(at::native_batch_norm(maps, weight, bias, mean, variance, false, 0, kEpsilon));
  }
  const auto [out, batch_mean, inverse_deviation] = at::native_batch_norm(maps, weight, bias, {}, {}, true, 0, kEpsilon);
  const auto samples = static_cast<double>(maps.size(0));
  const std::int64_t values = maps.numel() / maps.size(1);
  const double unbiased = static_cast<double>(values) / static_cast<double>(std::max<std::int64_t>(1, values - 1));
  shown.push_back(batch_mean.detach() * samples);
  shown.push_back((inverse_deviation.detach().pow(-2) - kEpsilon) * (unbiased * samples));
  return out;
}

}  // namespace tessera::nn
