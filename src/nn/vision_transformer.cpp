#include "nn/vision_transformer.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <cmath>

#include "nn/dropout.hpp"
#include "nn/row_dropout.hpp"

namespace tessera::nn {
namespace {

// Of heads, [samples, heads, seq, head_dim] each.
at::Tensor attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values, double dropped, const Pass& pass) {
  if (dropped == 0 || !pass.drops) return at::scaled_dot_product_attention(queries, keys, values);
  const double scale = 1 / std::sqrt(static_cast<double>(queries.size(3)));
  const at::Tensor shares = at::softmax(at::matmul(queries * scale, keys.transpose(2, 3)), -1);
  return at::matmul(dropout(shares, dropped, kScores, pass), values);
}

}  // namespace

Tensors patch_embedding(const model::BlockSpec& block, const Tensors&, const Tensors& parameters, const Pass& pass) {
  const at::Tensor &token = parameters.at(0), &positions = parameters.at(1), &weight = parameters.at(2);
  const at::Tensor images = pass.batch->at("images").to(weight.scalar_type());
  const std::int64_t samples = images.size(0), channels = images.size(1), patch = block.dim("patch"), side = images.size(2) / patch;
  // A convolution whose windows do not overlap is one product.
  const at::Tensor patches = images.reshape({samples, channels, side, patch, side, patch})
                                 .permute({0, 2, 4, 1, 3, 5})
                                 .reshape({samples, side * side, channels * patch * patch});
  const at::Tensor embedded = at::linear(patches, weight.flatten(1), parameters.at(3));
  const at::Tensor hidden = at::cat({token.expand({samples, 1, -1}), embedded}, 1) + positions;
  return {dropout(hidden, dropped_share(block), kEmbedded, pass)};
}

Tensors encoder_layer(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  const at::Tensor& x = inputs.front();
  const std::int64_t hidden = x.size(2), heads = block.dim("heads");
  const double dropped = dropped_share(block);
  auto next = parameters.begin();
  const auto norm = [&](const at::Tensor& values) {
    const at::Tensor &weight = *next++, &bias = *next++;
    return at::layer_norm(values, {hidden}, weight, bias, block.real("norm_eps"));
  };
  const auto linear = [&](const at::Tensor& values) {
    const at::Tensor &weight = *next++, &bias = *next++;
    return at::linear(values, weight, bias);
  };
  const auto into_heads = [&](const at::Tensor& values) { return values.unflatten(2, {heads, hidden / heads}).transpose(1, 2); };
  const at::Tensor normed = norm(x);
  const at::Tensor queries = into_heads(linear(normed)), keys = into_heads(linear(normed)), values = into_heads(linear(normed));
  const at::Tensor attended = attention(queries, keys, values, dropped, pass).transpose(1, 2).flatten(2);
  const at::Tensor middle = x + dropout(linear(attended), dropped, kAttended, pass);
  const at::Tensor wide = at::gelu(linear(norm(middle)));
  return {middle + dropout(linear(wide), dropped, kFeedForward, pass)};
}

}  // namespace tessera::nn
