// T5's blocks, beside what tests/python/test_t5.py compares with transformers.
#include "nn/t5.hpp"

#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <limits>

#include "nn/memory_helper.hpp"

namespace tessera::nn::test {
namespace {

using model::Precision;
using model::Recompute;

model::ModelSpec t5(const std::string& more) {
  return model::read_model(ConfigNode::parse(
      "{arch: t5, hidden: 128, layers: 2, heads: 4, ffn: 352, seq: 96, decoder_seq: 32, vocab: 512" + more + "}", "t5.yaml"));
}

Batch random_samples(const model::ModelSpec& spec, std::int64_t samples) {
  at::manual_seed(5);
  Batch batch;
  batch.tensors["tokens"] = at::randint(spec.dim("vocab"), {samples, spec.dim("seq")}, at::kLong);
  for (const char* name : {"decoder_tokens", "targets"})
    batch.tensors[name] = at::randint(spec.dim("vocab"), {samples, spec.dim("decoder_seq")}, at::kLong);
  return batch;
}

// All blocks on one rank; what is encoded goes to each layer of the decoder.
class Model {
 public:
  Model(model::ModelSpec spec, Precision precision) : spec_(std::move(spec)), instances_(spec_.blocks()) {
    std::map<std::string, Parameter> shared;
    for (const model::BlockInstance& instance : instances_) {
      std::vector<Parameter> parameters;
      for (const model::ParameterSpec& parameter : instance.spec->parameters) {
        const std::string name = parameter.tied_to.empty() ? instance.parameter_name(parameter) : parameter.tied_to;
        Parameter& own = shared[name];
        if (!own.value.defined()) {
          own = {&parameter, name, at::zeros(parameter.shape), at::zeros(parameter.shape)};
          initialize(parameter, name, 1, {}, own.value);
          if (precision == Precision::bf16) own.value = own.value.to(at::kBFloat16);
        }
        parameters.push_back(own);
      }
      blocks.push_back(make_block(*instance.spec, {}));
      blocks.back()->bind(std::move(parameters));
    }
  }

  const std::vector<model::BlockInstance>& instances() const { return instances_; }

  Tensors step(const Pass& pass, Recompute recompute = Recompute::none) {
    Pass unsaved = pass;
    unsaved.training = false;
    const auto repeats = [&](std::size_t b) { return recompute == Recompute::full && b > 0 && b + 1 < blocks.size(); };
    std::vector<Saved> saved(blocks.size());
    std::vector<Tensors> inputs(blocks.size());
    Tensors out;
    at::Tensor encoded, encoded_grad;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      Tensors in = inputs_of(b, out.empty() ? at::Tensor() : std::move(out.front()), encoded);
      out = blocks[b]->forward(in, saved[b], repeats(b) ? unsaved : pass);
      if (instances_[b].spec->outputs.front().name == "encoded") encoded = out.front();
      if (repeats(b)) inputs[b] = std::move(in);
    }
    encoded.reset();
    Tensors grads;
    for (std::size_t b = blocks.size(); b-- > 0;) {
      if (repeats(b)) blocks[b]->forward(inputs[b], saved[b], pass);
      inputs[b].clear();
      Tensors own = instances_[b].spec->outputs.front().name == "encoded" ? Tensors{std::exchange(encoded_grad, {})} : std::move(grads);
      grads = blocks[b]->backward_input(own, saved[b], pass);
      if (grads.size() == 2) {
        encoded_grad = encoded_grad.defined() ? encoded_grad + grads[1] : grads[1];
        grads.pop_back();
      }
      blocks[b]->backward_weight(saved[b], pass);
    }
    return out;
  }

  Tensors inputs_of(std::size_t block, at::Tensor before, const at::Tensor& encoded) const {
    const std::size_t count = instances_[block].spec->inputs.size();
    return count == 0 ? Tensors{} : count == 1 ? Tensors{std::move(before)} : Tensors{std::move(before), encoded};
  }

  std::vector<std::unique_ptr<Block>> blocks;

 private:
  const model::ModelSpec spec_;
  const std::vector<model::BlockInstance> instances_;
};

Pass pass_over(const Batch& batch, Precision precision = Precision::f32) {
  Pass pass;
  pass.batch = &batch;
  pass.precision = precision;
  pass.drops = true;
  pass.loss_scale = 0.01;
  return pass;
}

TEST(RelativeBias, HasABucketForEachShortDistanceAndWiderOnesFartherAway) {
  const at::Tensor table = at::arange(32, at::kFloat).unsqueeze(1);
  const at::Tensor both = relative_bias(table, 200, 128, false)[0], before = relative_bias(table, 200, 128, true)[0];
  const auto at_distance = [](const at::Tensor& bias, std::int64_t distance) { return bias[100][100 + distance].item<float>(); };
  for (const auto& [distance, bucket] : {std::pair(0, 0), {1, 17}, {-1, 1}, {7, 23}, {-7, 7}, {8, 24}, {-12, 9}, {-90, 14}, {99, 31}})
    EXPECT_EQ(at_distance(both, distance), static_cast<float>(bucket)) << distance;
  for (const auto& [distance, bucket] : {std::pair(0, 0), {-1, 1}, {-15, 15}, {-16, 16}, {-20, 17}, {-100, 30}})
    EXPECT_EQ(at_distance(before, distance), static_cast<float>(bucket)) << distance;
  EXPECT_EQ(before[199][0].item<float>(), 31);
  EXPECT_EQ(at_distance(before, 1), -std::numeric_limits<float>::infinity());
}

// Also what is dropped, whose masks are drawn again.
TEST(T5Blocks, ComputedAgainHaveTheSameLossAndGradients) {
  for (const char* more : {"", ", gated: true, tied: false, dropout: 0"}) {
    const model::ModelSpec spec = t5(more);
    const Batch batch = random_samples(spec, 2);
    Model kept(spec, Precision::f32), again(spec, Precision::f32);
    const Tensors loss = kept.step(pass_over(batch));
    EXPECT_TRUE(at::equal(loss.at(0), again.step(pass_over(batch), Recompute::full).at(0)));
    for (std::size_t b = 0; b < kept.blocks.size(); ++b)
      for (std::size_t i = 0; i < kept.blocks[b]->parameters().size(); ++i) {
        const Parameter& parameter = kept.blocks[b]->parameters()[i];
        EXPECT_TRUE(at::equal(parameter.grad, again.blocks[b]->parameters()[i].grad)) << parameter.name;
        EXPECT_GT(parameter.grad.abs().max().item<float>(), 0) << parameter.name;
      }
  }
}

TEST(T5Blocks, ComputeIn16Bits) {
  const model::ModelSpec spec = t5(", dropout: 0");
  const Batch batch = random_samples(spec, 4);
  Model exact(spec, Precision::f32), rounded(spec, Precision::bf16);
  const float loss = exact.step(pass_over(batch)).at(0).item<float>();
  EXPECT_NEAR(rounded.step(pass_over(batch, Precision::bf16)).at(0).item<float>(), loss, 0.01 * loss);
}

TEST(T5Blocks, StandWhole) {
  for (const model::Repeat& repeat : t5("").repeats) EXPECT_THROW(make_block(repeat.block, {.tensor_rank = 0, .tensor_size = 2}), Error);
}

constexpr const char* kForms[] = {"", ", dropout: 0", ", gated: true, tied: false", ", head_dim: 16, gated: true, dropout: 0"};

TEST(T5Costs, WhatBlocksKeepIsAsSaid) {
  constexpr std::int64_t kSamples = 3;
  for (const char* more : kForms)
    for (const Precision precision : {Precision::f32, Precision::bf16}) {
      const model::ModelSpec spec = t5(more);
      Model model(spec, precision);
      const Batch batch = random_samples(spec, kSamples);
      const Pass pass = pass_over(batch, precision);
      Tensors out;
      at::Tensor encoded;
      for (std::size_t b = 0; b < model.blocks.size(); ++b) {
        const model::BlockInstance& instance = model.instances()[b];
        SCOPED_TRACE(text(instance.name(), more, " ", model::name_of(precision)));
        const auto meter = std::make_shared<MemoryMeter>();
        const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
        const Tensors in = model.inputs_of(b, out.empty() ? at::Tensor() : out.front(), encoded);
        const std::int64_t input = in.empty() ? 0 : static_cast<std::int64_t>(in.front().nbytes());
        Saved saved;
        out.clear();
        out = model.blocks[b]->forward(in, saved, pass);
        const bool ends_encoder = instance.spec->outputs.front().name == "encoded";
        if (ends_encoder) encoded = out.front();
        const model::BlockCost cost = model::cost_of(*instance.spec, {.micro_batch_size = kSamples, .precision = precision});
        // The encoder's end counts its output, which the decoder's layers keep.
        const auto expected = static_cast<double>(cost.saved.value + (ends_encoder ? 0 : cost.output.value));
        EXPECT_NEAR(static_cast<double>(meter->held() + input), expected, 0.03 * expected);
      }
    }
}

TEST(T5Costs, PeakOfAStepIsWithinTenPercentOfWhatIsAllocated) {
  constexpr std::int64_t kSamples = 4;
  for (const char* more : kForms)
    for (const Precision precision : {Precision::f32, Precision::bf16})
      for (const Recompute recompute : {Recompute::none, Recompute::full}) {
        SCOPED_TRACE(text(more, " ", model::name_of(precision), " recompute ", model::name_of(recompute)));
        const model::ModelSpec spec = t5(more);
        Model model(spec, precision);
        const Batch batch = random_samples(spec, kSamples);
        const auto meter = std::make_shared<MemoryMeter>();
        {
          const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
          model.step(pass_over(batch, precision), recompute);
        }
        std::int64_t saved = 0, peak = 0, input = 0;
        for (const model::BlockInstance& instance : model.instances()) {
          const bool ends = instance.index == 0 || instance.index + 1 == static_cast<int>(model.blocks.size());
          const model::BlockCost cost = model::cost_of(
              *instance.spec, {.micro_batch_size = kSamples, .precision = precision, .recompute = ends ? Recompute::none : recompute});
          saved += cost.saved.value;
          peak = std::max({peak, saved + cost.forward_workspace.value + cost.output.value, saved + cost.backward_workspace.value + input});
          input = cost.output.value;
        }
        const auto expected = static_cast<double>(peak);
        EXPECT_NEAR(static_cast<double>(meter->peak()), expected, 0.1 * expected);
        EXPECT_EQ(meter->held(), 0) << "something is left after the step";
      }
}

}  // namespace
}  // namespace tessera::nn::test
