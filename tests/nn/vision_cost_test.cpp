// What the planner believes of the memory of vision models' blocks against what the allocator sees.
#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <map>
#include <set>

#include "model/tensor_flow.hpp"
#include "nn/memory_helper.hpp"
#include "nn/vision_helper.hpp"

namespace tessera::nn::test {
namespace {

using model::Recompute;

constexpr const char* kModels[] = {"{arch: resnet18, image: 64, classes: 50}",
                                   "{arch: resnet50, image: 64, classes: 50}",
                                   "{arch: vgg11, image: 64, classes: 50}",
                                   "{arch: vgg16, image: 96, classes: 50, norm: true}",
                                   "{arch: vit, hidden: 192, layers: 4, heads: 3, image: 64, patch: 8, classes: 50}",
                                   "{arch: vit, hidden: 192, layers: 4, heads: 3, image: 64, patch: 8, classes: 50, dropout: 0.1}"};

std::int64_t bytes_of(const Tensors& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

// A training step's.
Pass pass_of(const Batch& batch) {
  Pass pass;
  pass.batch = &batch;
  pass.drops = true;
  return pass;
}

// A tensor counts with the block that reads it first.
void expect_what_blocks_keep(const std::string& section) {
  constexpr std::int64_t kSamples = 2;
  const model::ModelSpec spec = vision_model(section);
  VisionModel model(spec);
  const Batch batch = random_images(spec, kSamples);
  const Pass pass = pass_of(batch);
  std::map<std::string, at::Tensor> made;
  std::set<std::string> unread;
  std::vector<Saved> saved(model.instances().size());
  const std::vector<model::BlockFlow> flow = model::tensor_flow(spec);
  for (std::size_t b = 0; b < saved.size(); ++b) {
    const model::BlockInstance& instance = model.instances()[b];
    SCOPED_TRACE(text(section, " ", instance.name()));
    Tensors inputs;
    std::int64_t first_read = 0;
    for (const model::TensorSpec& read : instance.spec->inputs) {
      inputs.push_back(made.at(read.name));
      if (unread.erase(read.name) > 0) first_read += static_cast<std::int64_t>(inputs.back().nbytes());
    }
    const auto meter = std::make_shared<MemoryMeter>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
    const Tensors outputs = model.block(b).forward(inputs, saved[b], pass);
    inputs.clear();
    for (std::size_t i = 0; i < flow[b].before.size(); ++i)
      if (std::find(flow[b].after.begin(), flow[b].after.end(), -1 - static_cast<int>(i)) == flow[b].after.end())
        made.erase(flow[b].before[i].name);
    const auto expected = static_cast<double>(model::cost_of(*instance.spec, {.micro_batch_size = kSamples}).saved.value);
    EXPECT_NEAR(static_cast<double>(meter->held() - bytes_of(outputs) + first_read), expected, 0.1 * expected);
    for (std::size_t i = 0; i < instance.spec->outputs.size(); ++i) {
      made[instance.spec->outputs[i].name] = outputs.at(i);
      unread.insert(instance.spec->outputs[i].name);
    }
  }
}

TEST(VisionCosts, WhatBlocksKeepIsWithinTenPercent) {
  for (const char* section : kModels) expect_what_blocks_keep(section);
  for (const char* arch : {"resnet18", "resnet50"})
    expect_what_blocks_keep(text("{arch: ", arch, ", image: 64, classes: 50, split_layers: true}"));
}

TEST(TextClassifierCosts, WhatItKeepsIsWithinTenPercent) {
  constexpr std::int64_t kSamples = 16;
  const model::ModelSpec spec = model::read_model(ConfigNode::parse(
      "{arch: bert, hidden: 192, layers: 1, heads: 3, seq: 32, vocab: 500, head: classification, classes: 50, dropout: 0.1}",
      "model.yaml"));
  const model::BlockInstance head = spec.blocks().back();
  std::vector<Parameter> parameters;
  for (const model::ParameterSpec& parameter : head.spec->parameters)
    parameters.push_back({&parameter, head.parameter_name(parameter), at::randn(parameter.shape), at::zeros(parameter.shape)});
  const auto block = make_block(*head.spec, {});
  block->bind(std::move(parameters));
  Batch batch;
  batch.tensors["labels"] = at::randint(spec.dim("classes"), {kSamples}, at::kLong);
  Tensors inputs = {at::randn({kSamples, spec.dim("seq"), spec.dim("hidden")})};
  const std::size_t input = inputs.front().nbytes();
  const auto meter = std::make_shared<MemoryMeter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  Saved saved;
  const Tensors outputs = block->forward(inputs, saved, pass_of(batch));
  inputs.clear();
  const auto expected = static_cast<double>(model::cost_of(*head.spec, {.micro_batch_size = kSamples}).saved.value);
  EXPECT_NEAR(static_cast<double>(meter->held() - bytes_of(outputs)) + static_cast<double>(input), expected, 0.1 * expected);
}

// As in a training step, the first and the last block are not computed again.
std::int64_t expected_peak_of(const model::ModelSpec& spec, std::int64_t samples, Recompute recompute) {
  const auto blocks = spec.blocks();
  std::int64_t saved = 0, peak = 0, input = 0;
  for (const model::BlockInstance& instance : blocks) {
    const bool ends = instance.index == 0 || instance.index + 1 == static_cast<int>(blocks.size());
    const model::BlockCost cost =
        model::cost_of(*instance.spec, {.micro_batch_size = samples, .recompute = ends ? Recompute::none : recompute});
    saved += cost.saved.value;
    peak = std::max({peak, saved + cost.forward_workspace.value + cost.output.value, saved + cost.backward_workspace.value + input});
    input = cost.output.value;
  }
  return peak;
}

TEST(VisionCosts, PeakOfAStepIsWithinTenPercentOfWhatIsAllocated) {
  constexpr std::int64_t kSamples = 8;
  for (const char* section : kModels)
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      SCOPED_TRACE(text(section, " recompute ", model::name_of(recompute)));
      const model::ModelSpec spec = vision_model(section);
      VisionModel model(spec);
      const Batch batch = random_images(spec, kSamples);
      const Pass pass = pass_of(batch);
      const auto meter = std::make_shared<MemoryMeter>();
      {
        const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
        model.step(pass, recompute == Recompute::full);
      }
      const auto expected = static_cast<double>(expected_peak_of(spec, kSamples, recompute));
      EXPECT_NEAR(static_cast<double>(meter->peak()), expected, 0.1 * expected);
      EXPECT_EQ(meter->held(), 0) << "something is left after the step";
    }
}

}  // namespace
}  // namespace tessera::nn::test
