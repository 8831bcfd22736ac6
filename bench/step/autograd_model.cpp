#include "autograd_model.hpp"

#include <ATen/ATen.h>

#include "nn/autograd_block.hpp"

namespace tessera::bench {

namespace {

using model::ParameterSpec;
using nn::Tensors;

struct Rotation {
  at::Tensor cos, sin;  // [seq, head_dim]
};

Rotation rotation(std::int64_t seq, std::int64_t head_dim) {
  const at::Tensor frequency = at::pow(10000.0, -at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim));
  const at::Tensor angle = at::outer(at::arange(seq, at::kFloat), frequency).repeat({1, 2});
  return {angle.cos(), angle.sin()};
}

at::Tensor rotate(const at::Tensor& x, const Rotation& by) {
  const std::int64_t half = x.size(-1) / 2;
  return x * by.cos.to(x.scalar_type()) + at::cat({-x.slice(-1, half), x.slice(-1, 0, half)}, -1) * by.sin.to(x.scalar_type());
}

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) { return at::rms_norm(x, {x.size(-1)}, weight, 1e-5); }

ParameterSpec parameter(const std::string& name, std::vector<std::int64_t> shape) {
  ParameterSpec out;
  out.init = {shape.size() == 1 ? "ones" : "normal", shape.size() == 1 ? 0 : 0.02};
  out.name = name;
  out.shape = std::move(shape);
  return out;
}

}  // namespace

model::ModelSpec autograd_model(const LlamaShape& s) {
  const std::int64_t head_dim = s.hidden / s.heads;
  nn::register_forward("eager_embedding", [](const model::BlockSpec&, const Tensors&, const Tensors& parameters, const nn::Pass& pass) {
    return Tensors{at::embedding(parameters[0], pass.batch->at("tokens"))};
  });
  const auto layer = [s, head_dim, by = rotation(s.seq, head_dim)](const model::BlockSpec&, const Tensors& inputs, const Tensors& p,
                                                                   const nn::Pass&) {
    const at::Tensor& x = inputs[0];
    const std::int64_t samples = x.size(0);
    const at::Tensor heads = at::linear(norm(x, p[0]), p[1]).view({samples, s.seq, s.heads + 2 * s.kv_heads, head_dim}).transpose(1, 2);
    const Tensors qkv = heads.split_with_sizes({s.heads, s.kv_heads, s.kv_heads}, 1);
    const at::Tensor attended = at::scaled_dot_product_attention(rotate(qkv[0], by), rotate(qkv[1], by), qkv[2], {}, 0.0,
                                                                 /*is_causal=*/true, {}, /*enable_gqa=*/true);
    const at::Tensor middle = x + at::linear(attended.transpose(1, 2).reshape({samples, s.seq, -1}), p[2]);
    const Tensors gate_up = at::linear(norm(middle, p[3]), p[4]).chunk(2, -1);
    return Tensors{middle + at::linear(at::silu(gate_up[0]) * gate_up[1], p[5])};
  };
  nn::register_forward("eager_layer", layer);
  nn::register_forward("eager_head", [](const model::BlockSpec&, const Tensors& inputs, const Tensors& p, const nn::Pass& pass) {
    const at::Tensor& targets = pass.batch->at("targets");
    const at::Tensor logits = at::linear(norm(inputs[0], p[0]), p[1]).flatten(0, 1).to(at::kFloat);
    return Tensors{at::cross_entropy_loss(logits, targets.flatten(), {}, at::Reduction::Sum), at::full({}, targets.numel(), at::kLong)};
  });
  const model::TensorSpec hidden{"hidden", {s.seq, s.hidden}};
  model::ModelSpec out;
  out.arch = "eager";
  out.repeats = {
      {{"eager_embedding", "embed", {}, {parameter("embed", {s.vocab, s.hidden})}, {}, {hidden}, {}}, 1},
      {{"eager_layer",
        "layers.{}",
        {},
        {parameter("layers.{}.norm1", {s.hidden}), parameter("layers.{}.qkv", {(s.heads + 2 * s.kv_heads) * head_dim, s.hidden}),
         parameter("layers.{}.out", {s.hidden, s.heads * head_dim}), parameter("layers.{}.norm2", {s.hidden}),
         parameter("layers.{}.gate_up", {2 * s.ffn, s.hidden}), parameter("layers.{}.down", {s.hidden, s.ffn})},
        {hidden},
        {hidden},
        {}},
       static_cast<int>(s.layers)},
      {{"eager_head", "head", {}, {parameter("norm", {s.hidden}), parameter("head", {s.vocab, s.hidden})}, {hidden}, {{"loss", {}}}, {}},
       1}};
  return out;
}

}  // namespace tessera::bench
