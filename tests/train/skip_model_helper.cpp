#include "train/skip_model_helper.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>

#include "nn/autograd_block.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

using nn::Pass;
using nn::Tensors;

constexpr std::int64_t kSeq = 16, kHidden = 24, kSkip = 8, kVocab = 64;
const model::TensorSpec kHiddenState{"hidden", {kSeq, kHidden}};
const model::TensorSpec kSkipped{"skip", {kSeq, kSkip}};

Tensors embed(const model::BlockSpec&, const Tensors&, const Tensors& parameters, const Pass& pass) {
  const at::Tensor& tokens = pass.batch->at("tokens");
  return {at::embedding(parameters.at(0), tokens), at::embedding(parameters.at(1), tokens)};
}

// Also shows what the mean of its input is: a buffer.
Tensors layer(const model::BlockSpec&, const Tensors& inputs, const Tensors& parameters, const Pass&) {
  // What a position sees of those before it.
  const at::Tensor& x = inputs.at(0);
  const at::Tensor& center = parameters.at(2);
  return {x + at::tanh(at::linear(x.cumsum(1) / kSeq - center, parameters.at(0), parameters.at(1))),
          x.detach().to(at::kFloat).mean(1).sum(0)};
}

Tensors join(const model::BlockSpec&, const Tensors& inputs, const Tensors& parameters, const Pass&) {
  return {inputs.at(1) + at::linear(inputs.at(0), parameters.at(0))};
}

Tensors head(const model::BlockSpec&, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  const at::Tensor logits = at::linear(inputs.at(0), parameters.at(0)).to(at::kFloat);
  const at::Tensor& targets = pass.batch->at("targets");
  return {at::cross_entropy_loss(logits.reshape({-1, kVocab}), targets.reshape({-1}), {}, at::Reduction::Sum, -1), (targets >= 0).sum()};
}

model::ParameterSpec parameter(const std::string& name, std::vector<std::int64_t> shape, const model::Initializer& init = {}) {
  model::ParameterSpec out;
  out.name = name;
  out.shape = std::move(shape);
  out.init = init;
  return out;
}

model::BlockSpec block(const std::string& kind, const std::string& name, std::vector<model::ParameterSpec> parameters,
                       std::vector<model::TensorSpec> inputs, std::vector<model::TensorSpec> outputs) {
  return {"skip_" + kind, name, {}, std::move(parameters), std::move(inputs), std::move(outputs), {}};
}

}  // namespace

model::JobSpec skip_job() {
  static const bool registered = [] {
    nn::register_forward("skip_embedding", embed);
    nn::register_forward("skip_layer", layer);
    nn::register_forward("skip_join", join);
    nn::register_forward("skip_head", head);
    return true;
  }();
  ensure(registered, "blocks of the model with a skip");
  model::ParameterSpec center = parameter("layers.{}.center", {kHidden}, {"zeros", 0});
  center.buffer_momentum = 0.5;
  model::JobSpec job = tiny_job();
  job.model = {};
  job.model.arch = "skip";
  job.model.plugin = "a test's own";
  job.model.dims = {{"seq", kSeq}, {"hidden", kHidden}, {"heads", 1}, {"kv_heads", 1}, {"layers", 6}, {"ffn", 0}, {"vocab", kVocab}};
  job.model.repeats = {
      {block("embedding", "embed", {parameter("embed.weight", {kVocab, kHidden}), parameter("skip.weight", {kVocab, kSkip})}, {},
             {kHiddenState, kSkipped}),
       1},
      {block("layer", "layers.{}",
             {parameter("layers.{}.weight", {kHidden, kHidden}, {"normal", 0.2}), parameter("layers.{}.bias", {kHidden}, {"zeros", 0}),
              center},
             {kHiddenState}, {kHiddenState}),
       6},
      {block("join", "join", {parameter("join.weight", {kHidden, kSkip}, {"normal", 0.2})}, {kSkipped, kHiddenState}, {kHiddenState}), 1},
      {block("head", "head", {parameter("head.weight", {kVocab, kHidden}, {"uniform", 0.2})}, {kHiddenState}, {{"loss", {}}}), 1}};
  return job;
}

}  // namespace tessera::train
