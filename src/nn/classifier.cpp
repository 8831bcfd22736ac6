#include "nn/classifier.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>

#include "nn/dropout.hpp"
#include "nn/row_dropout.hpp"

namespace tessera::nn {

Tensors classification_loss(const at::Tensor& values, const Pass& pass) {
  const at::Tensor logits = values.to(at::kFloat);
  const at::Tensor labels = pass.batch->find("labels");
  if (!labels.defined()) return {logits};
  Tensors out;
  if (const at::Tensor mixed = pass.batch->find("mixed_labels"); mixed.defined()) {
    const auto each = [&](const at::Tensor& of) { return at::cross_entropy_loss(logits, of, {}, at::Reduction::None, -1); };
    const at::Tensor& weight = pass.batch->at("mixed_weight");
    out = {((1 - weight) * each(labels) + weight * each(mixed)).sum()};
  } else {
    out = {at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, -1)};
  }
  out.push_back((labels >= 0).sum());
  if (!pass.training && !pass.drops) out.push_back((logits.argmax(1) == labels).sum());
  return out;
}

Tensors position_classifier(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  const at::Tensor& x = inputs.front();
  // A norm is of each position by itself.
  const at::Tensor first = at::layer_norm(x.select(1, 0), {x.size(2)}, parameters.at(0), parameters.at(1), block.real("norm_eps"));
  return classification_loss(at::linear(first, parameters.at(2), parameters.at(3)), pass);
}

Tensors pooled_classifier(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  const at::Tensor pooled = at::tanh(at::linear(inputs.front().select(1, 0), parameters.at(0), parameters.at(1)));
  const at::Tensor kept = dropout(pooled, dropped_share(block), kEmbedded, pass);
  return classification_loss(at::linear(kept, parameters.at(2), parameters.at(3)), pass);
}

}  // namespace tessera::nn
