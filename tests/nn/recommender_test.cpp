// Blocks of models that read clicks, held to sums over pairs that are written out; tests/python/test_clicks.py holds whole models to
// PyTorch.
#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "nn/block.hpp"
#include "nn/memory_helper.hpp"

namespace tessera::nn {
namespace {

constexpr std::int64_t kSamples = 3, kTables = 4, kDim = 5, kDense = 2;

model::ModelSpec model_of(const std::string& section) { return model::read_model(ConfigNode::parse(section, "train.yaml")); }
model::ModelSpec deepfm() { return model_of("{arch: deepfm, dim: 5, dense: 2, tables: [7, 0, 3, 0], hidden: [6]}"); }

// A block with random parameters.
struct Bound {
  Bound(const model::ModelSpec& model, std::size_t index) : instance(model.blocks().at(index)), block(make_block(*instance.spec, {})) {
    std::vector<Parameter> parameters;
    for (const model::ParameterSpec& spec : instance.spec->parameters)
      if (!spec.sparse) parameters.push_back({&spec, spec.name, at::randn(spec.shape), at::zeros(spec.shape)});
    block->bind(std::move(parameters));
  }
  model::BlockInstance instance;
  std::unique_ptr<Block> block;
};

Batch batch_of(const std::vector<std::int64_t>& labels) {
  Batch batch;
  batch.tensors["labels"] = at::tensor(labels);
  batch.tensors["dense"] = at::randn({static_cast<std::int64_t>(labels.size()), kDense});
  return batch;
}

TEST(EmbeddingTables, PassRowsOnAndLeaveTheirGradients) {
  at::manual_seed(1);
  const model::ModelSpec model = deepfm();
  const Bound tables(model, 0);
  Batch batch = batch_of({0, 1, 0});
  batch.tensors["rows"] = at::randn({kSamples, kTables, kDim + 1});
  batch.tensors["row_gradients"] = at::zeros({kSamples, kTables, kDim + 1});
  Pass pass;
  pass.batch = &batch;
  Saved saved;
  EXPECT_TRUE(tables.block->forward({}, saved, pass).at(0).equal(batch.at("rows")));
  const at::Tensor gradient = at::randn({kSamples, kTables, kDim + 1});
  EXPECT_TRUE(tables.block->backward_input({gradient}, saved, pass).empty());
  tables.block->backward_weight(saved, pass);
  EXPECT_TRUE(batch.at("row_gradients").equal(gradient));
  pass.precision = model::Precision::bf16;
  EXPECT_EQ(tables.block->forward({}, saved, pass).at(0).scalar_type(), at::kBFloat16);
}

TEST(Interaction, OfAFactorizationMachineSumsAllPairs) {
  at::manual_seed(2);
  const model::ModelSpec model = deepfm();
  const Bound interaction(model, 1);
  const Batch batch = batch_of({0, 1, 0});
  const at::Tensor rows = at::randn({kSamples, kTables, kDim + 1});
  Pass pass;
  pass.batch = &batch;
  Saved saved;
  const Tensors out = interaction.block->forward({rows}, saved, pass);
  const at::Tensor vectors = rows.narrow(2, 1, kDim);
  EXPECT_TRUE(out.at(0).equal(at::cat({vectors.flatten(1), batch.at("dense")}, 1)));
  at::Tensor logit = rows.select(2, 0).sum(1) + at::mv(batch.at("dense"), interaction.block->parameters().at(0).value[0]);
  for (std::int64_t i = 0; i < kTables; ++i)
    for (std::int64_t j = 0; j < i; ++j) logit = logit + (vectors.select(1, i) * vectors.select(1, j)).sum(1);
  EXPECT_TRUE(at::allclose(out.at(1).squeeze(1), logit, 1e-5, 1e-5));
}

TEST(Interaction, OfDlrmIsAllDotProductsBehindTheDenseOutput) {
  at::manual_seed(3);
  const model::ModelSpec model = model_of("{arch: dlrm, dense: 2, dim: 5, tables: 4, bottom: [8, 5], top: [6, 1]}");
  const Bound interaction(model, 2);
  const at::Tensor rows = at::randn({kSamples, kTables, kDim}), bottom = at::randn({kSamples, kDim});
  const Batch batch;
  Pass pass;
  pass.batch = &batch;
  Saved saved;
  const at::Tensor out = interaction.block->forward({rows, bottom}, saved, pass).at(0);
  const at::Tensor all = at::cat({bottom.unsqueeze(1), rows}, 1);
  Tensors expected = {bottom};
  for (std::int64_t i = 0; i <= kTables; ++i)
    for (std::int64_t j = 0; j < i; ++j) expected.push_back((all.select(1, i) * all.select(1, j)).sum(1, true));
  EXPECT_TRUE(at::allclose(out, at::cat(expected, 1), 1e-5, 1e-5));
  EXPECT_EQ(out.size(1), interaction.instance.spec->outputs.front().shape.front());
}

TEST(Interaction, OfWideAndDeepHasNoPairs) {
  at::manual_seed(5);
  const model::ModelSpec model = model_of("{arch: wide_deep, dim: 5, dense: 2, tables: 4, hidden: [6]}");
  const Bound interaction(model, 1);
  const Batch batch = batch_of({0, 1, 0});
  const at::Tensor rows = at::randn({kSamples, kTables, kDim + 1});
  Pass pass;
  pass.batch = &batch;
  Saved saved;
  const at::Tensor logit = rows.select(2, 0).sum(1) + at::mv(batch.at("dense"), interaction.block->parameters().at(0).value[0]);
  EXPECT_TRUE(at::allclose(interaction.block->forward({rows}, saved, pass).at(1).squeeze(1), logit, 1e-5, 1e-5));
}

TEST(Cross, OfLowRankIsTheWholeOneOfTheProduct) {
  at::manual_seed(6);
  const model::ModelSpec model = model_of("{arch: dcn_v2, dim: 5, dense: 2, tables: 4, cross: 2, rank: 3, hidden: [6]}");
  const Bound first(model, 2), second(model, 3);
  EXPECT_EQ(second.instance.parameter_name(second.instance.spec->parameters.front()), "cross.1.v.weight");
  const at::Tensor x0 = at::randn({kSamples, kTables * kDim + kDense}), x = at::randn_like(x0);
  const Batch batch;
  Pass pass;
  pass.batch = &batch;
  Saved saved;
  const auto by_hand = [&](const Bound& layer, const at::Tensor& state) {
    const auto& parameters = layer.block->parameters();
    const at::Tensor whole = at::matmul(parameters.at(1).value, parameters.at(0).value);
    return x0 * (at::matmul(state, whole.t()) + parameters.at(2).value) + state;
  };
  EXPECT_TRUE(at::allclose(first.block->forward({x0}, saved, pass).at(0), by_hand(first, x0), 1e-4, 1e-4));
  EXPECT_TRUE(at::allclose(second.block->forward({x0, x}, saved, pass).at(0), by_hand(second, x), 1e-4, 1e-4));
}

TEST(TargetAttention, WeighsNoKeyThatIsNotThere) {
  at::manual_seed(7);
  for (const char* softmax : {"false", "true"}) {
    const model::ModelSpec model = model_of(
        text("{arch: din, dim: 5, dense: 2, tables: 4, target: 2, history: 3, attention: [6], hidden: [6], softmax: ", softmax, "}"));
    const Bound attention(model, 1);
    Batch batch = batch_of({0, 1, 0});
    batch.tensors["history"] = at::tensor({7, 8, -1, -1, -1, -1, 5, 6, 7}, at::kLong).view({kSamples, 3});
    const at::Tensor rows = at::randn({kSamples, kTables, kDim}), history = at::randn({kSamples, 3, kDim});
    Pass pass;
    pass.batch = &batch;
    pass.loss_scale = 1;
    Saved saved;
    const at::Tensor out = attention.block->forward({rows, history}, saved, pass).at(0);
    ASSERT_EQ(out.sizes(), (std::vector<std::int64_t>{kSamples, 5 * kDim + kDense}));
    EXPECT_TRUE(out.narrow(1, 0, 4 * kDim).equal(rows.flatten(1)));
    EXPECT_TRUE(out.narrow(1, 5 * kDim, kDense).equal(batch.at("dense")));
    const at::Tensor interest = out.narrow(1, 4 * kDim, kDim);
    EXPECT_EQ(interest[1].abs().max().item<float>(), 0);
    const auto& maps = attention.block->parameters();
    at::Tensor scores = at::empty({3});
    for (std::int64_t i = 0; i < 3; ++i) {
      const at::Tensor key = history[2][i], target = rows[2][2];
      const at::Tensor hidden =
          at::sigmoid(at::mv(maps.at(0).value, at::cat({key, target, target - key, target * key})) + maps.at(1).value);
      scores[i] = (at::mv(maps.at(2).value, hidden) + maps.at(3).value)[0];
    }
    if (*softmax == 't') scores = at::softmax(scores, 0);
    EXPECT_TRUE(at::allclose(interest[2], at::mv(history[2].t(), scores), 1e-4, 1e-4));
    const Tensors gradients = attention.block->backward_input({at::ones_like(out)}, saved, pass);
    EXPECT_EQ(gradients.at(1)[0][2].abs().max().item<float>(), 0);
    EXPECT_EQ(gradients.at(1)[1].abs().max().item<float>(), 0);
    EXPECT_TRUE(gradients.at(0).isfinite().all().item<bool>());
  }
}

// Against what the allocator sees.
TEST(ClickCosts, WhatBlocksKeepIsWithinTenPercent) {
  constexpr std::int64_t kMany = 64;
  Batch batch;
  batch.tensors["dense"] = at::randn({kMany, kDense});
  batch.tensors["history"] = at::zeros({kMany, 12}, at::kLong);
  Pass pass;
  pass.batch = &batch;
  for (const char* section : {"{arch: dcn_v2, dim: 8, dense: 2, tables: 40, cross: 2, hidden: [6]}",
                              "{arch: dcn_v2, dim: 8, dense: 2, tables: 40, cross: 2, rank: 20, hidden: [6]}",
                              "{arch: din, dim: 8, dense: 2, tables: 9, history: 12, attention: [16, 8], hidden: [6]}"}) {
    const model::ModelSpec model = model_of(section);
    for (const model::BlockInstance& instance : model.blocks()) {
      if (instance.spec->kind != "features" && instance.spec->kind != "cross" && instance.spec->kind != "target_attention") continue;
      SCOPED_TRACE(text(section, " ", instance.name()));
      const Bound bound(model, static_cast<std::size_t>(instance.index));
      Tensors inputs;
      for (const model::TensorSpec& spec : instance.spec->inputs) {
        std::vector<std::int64_t> shape = {kMany};
        shape.insert(shape.end(), spec.shape.begin(), spec.shape.end());
        inputs.push_back(at::randn(shape));
      }
      const auto bytes_of = [](const Tensors& tensors) {
        std::int64_t bytes = 0;
        for (const at::Tensor& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
        return bytes;
      };
      Saved saved;
      const auto meter = std::make_shared<MemoryMeter>();
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
      const Tensors outputs = bound.block->forward(inputs, saved, pass);
      const auto expected = static_cast<double>(model::cost_of(*instance.spec, {.micro_batch_size = kMany}).saved.value);
      EXPECT_NEAR(static_cast<double>(meter->held() - bytes_of(outputs) + bytes_of(inputs)), expected, 0.1 * expected);
    }
  }
}

TEST(ClickLoss, IsTheCrossEntropyOfThoseThatCount) {
  at::manual_seed(4);
  const model::ModelSpec model = deepfm();
  const Bound deep(model, 2);
  const Batch batch = batch_of({1, 0, -1});
  const at::Tensor features = at::randn({kSamples, kTables * kDim + kDense}), machine = at::randn({kSamples, 1});
  Pass pass;
  pass.batch = &batch;
  pass.training = false;
  Saved saved;
  const Tensors out = deep.block->forward({features, machine}, saved, pass);
  const auto& parameters = deep.block->parameters();
  const at::Tensor hidden = at::relu(at::linear(features, parameters.at(0).value, parameters.at(1).value));
  const at::Tensor logits = (at::linear(hidden, parameters.at(2).value, parameters.at(3).value) + machine).squeeze(1);
  const auto softplus = [](double x) { return std::log1p(std::exp(x)); };
  EXPECT_NEAR(out.at(0).item<float>(), softplus(-logits[0].item<float>()) + softplus(logits[1].item<float>()), 1e-5);
  EXPECT_EQ(out.at(1).item<std::int64_t>(), 2);
  ASSERT_EQ(out.at(2).sizes(), (std::vector<std::int64_t>{2, 2}));
  EXPECT_TRUE(at::allclose(out.at(2)[0], logits.narrow(0, 0, 2)));
  EXPECT_TRUE(out.at(2)[1].equal(at::tensor({1.0f, 0.0f})));

  pass.training = true;
  pass.loss_scale = 0.5;
  EXPECT_EQ(deep.block->forward({features, machine}, saved, pass).size(), 2u);
  const Tensors gradients = deep.block->backward_input({}, saved, pass);
  const at::Tensor expected = 0.5 * (at::sigmoid(logits) - at::tensor({1.0f, 0.0f, 0.0f}));
  EXPECT_TRUE(at::allclose(gradients.at(1).narrow(0, 0, 2).squeeze(1), expected.narrow(0, 0, 2), 1e-5, 1e-6));
  EXPECT_EQ(gradients.at(0)[2].abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace tessera::nn
