#include "nn/classifier.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>

#include "nn/dropout.hpp"

namespace tessera::nn {
namespace {

Tensors loss_of(const at::Tensor& values, const Pass& pass) {
  const at::Tensor logits = values.to(at::kFloat);
  const at::Tensor labels = pass.batch->find("labels");
  if (!labels.defined()) return {logits};
  const at::Tensor count = (labels >= 0).sum();
  const at::Tensor mixed = pass.batch->find("mixed_labels");
  if (!mixed.defined()) return {at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, -1), count};
  const auto each = [&](const at::Tensor& of) { return at::cross_entropy_loss(logits, of, {}, at::Reduction::None, -1); };
  const at::Tensor& weight = pass.batch->at("mixed_weight");
  return {((1 - weight) * each(labels) + weight * each(mixed)).sum(), count};
}

}  // namespace

Tensors classifier(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  const at::Tensor& x = inputs.front();
  if (block.dims.contains("pixels")) return loss_of(at::linear(x.mean({2, 3}), parameters.at(0), parameters.at(1)), pass);
  // A norm is of each position by itself.
  const at::Tensor first = at::layer_norm(x.select(1, 0), {x.size(2)}, parameters.at(0), parameters.at(1), block.real("norm_eps"));
  return loss_of(at::linear(first, parameters.at(2), parameters.at(3)), pass);
}

Tensors mlp_classifier(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  constexpr std::int64_t kSide = 7;
  const std::int64_t maps = block.dim("maps");
  const double dropped = block.real("dropout");
  at::Tensor x = at::adaptive_avg_pool2d(inputs.front(), {kSide, kSide}).flatten(1);
  for (std::int64_t i = 0; i < maps; ++i) {
    const auto place = static_cast<std::size_t>(2 * i);
    x = at::linear(x, parameters.at(place), parameters.at(place + 1));
    if (i + 1 < maps) x = dropout(at::relu(x), dropped, static_cast<int>(i), pass);
  }
  return loss_of(x, pass);
}

}  // namespace tessera::nn
