#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "nn/decoder_helper.hpp"

namespace tessera::nn::test {
namespace {

using model::Precision;

Pass pass_of(const Batch& batch, Precision precision, double scale = 1.0) {
  Pass pass;
  pass.batch = &batch;
  pass.precision = precision;
  pass.loss_scale = scale;
  pass.drops = true;
  return pass;
}

void expect_equal_grads(const Model& model, const Reference& expected, double tolerance) {
  for (const auto& [name, grad] : model.grads())
    EXPECT_LT(gradient_error(name, grad, expected.grads.at(name), expected.grads), tolerance) << name;
}

struct Case {
  const char* what;
  Dims dims;
  std::int64_t samples;
};
const std::vector<Case> kCases = {
    {"plain", {}, 3},
    {"one key-value head", {.hidden = 96, .layers = 1, .heads = 6, .kv_heads = 1, .ffn = 80, .vocab = 77, .seq = 19}, 2},
    {"as many key-value heads as heads", {.hidden = 48, .layers = 2, .heads = 3, .kv_heads = 3, .ffn = 130, .vocab = 1001, .seq = 65}, 1},
    {"long", {.hidden = 128, .layers = 1, .heads = 2, .kv_heads = 1, .ffn = 256, .vocab = 512, .seq = 300}, 2},
    {"tied", {.tied = true}, 2},
    {"scaled rotary positions", {.seq = 70, .scaled = true}, 2},
    {"biases", {.seq = 70, .qkv_bias = true}, 2},
    {"norms of heads that are wider than hidden / heads", {.head_dim = 40, .qk_norm = true}, 3},
    {"a window", {.seq = 100, .window = 37}, 2},
    {"a window of two", {.window = 2}, 2},
    {"dropout", {.seq = 70, .window = 20, .dropout = 0.1}, 3},
    {"GPT-2", {.kv_heads = 4, .seq = 140, .tied = true, .gpt = true}, 2},
    {"GPT-2 with dropout", {.kv_heads = 4, .seq = 140, .tied = true, .dropout = 0.2, .gpt = true}, 2},
    {"GPT-2 without biases and positions", {.hidden = 60, .kv_heads = 4, .gpt = true, .biases = false, .positions = "none"}, 3},
    {"GPT-2 with a gate, a norm of embeddings, fewer keys and rotation",
     {.seq = 70, .head_dim = 24, .dropout = 0.1, .gpt = true, .gated = true, .embedding_norm = true, .positions = "rotary"},
     2},
    {"BERT", {.kv_heads = 4, .seq = 140, .tied = true, .bert = true}, 2},
    {"BERT with dropout, token types and a projection of its own",
     {.hidden = 60, .layers = 3, .kv_heads = 4, .vocab = 77, .seq = 70, .dropout = 0.2, .bert = true, .token_types = true},
     3},
    {"BERT with split layers", {.kv_heads = 4, .seq = 70, .tied = true, .bert = true, .split = true}, 2},
    {"all at once", {.seq = 70, .tied = true, .head_dim = 24, .window = 20, .qkv_bias = true, .qk_norm = true, .scaled = true}, 2},
};
// All that a layer of Llama's form may have, one of GPT-2's and one of BERT's.
const Dims kEverything = kCases.back().dims;
const Dims kGpt{.seq = 70, .tied = true, .dropout = 0.2, .gpt = true, .gated = true, .embedding_norm = true};
const Dims kBert{.kv_heads = 4, .seq = 70, .tied = true, .dropout = 0.2, .bert = true};
const Dims kSplit{.kv_heads = 4, .seq = 70, .tied = true, .dropout = 0.2, .bert = true, .split = true};

TEST(Blocks, GiveAutogradsLossAndGradientsInF32) {
  for (const auto& [what, dims, samples] : kCases) {
    SCOPED_TRACE(what);
    const model::ModelSpec spec = decoder(dims);
    const auto whole = whole_parameters(spec, 7);
    const Batch batch = random_batch(dims, samples, 3);
    const Reference expected = reference(dims, whole, batch, 0.01, true);
    Model model(spec, whole, Precision::f32);
    const Model::Step step = model.step(pass_of(batch, Precision::f32, 0.01));
    EXPECT_NEAR(step.loss, expected.loss, 1e-5 * expected.loss);
    EXPECT_EQ(step.tokens, (batch.at("targets") >= 0).sum().item<std::int64_t>());
    expect_equal_grads(model, expected, 1e-5);
  }
}

TEST(Blocks, GiveAutogradsLossAndGradientsInBf16WithinItsRounding) {
  for (const auto& [what, dims, samples] : kCases) {
    SCOPED_TRACE(what);
    const model::ModelSpec spec = decoder(dims);
    const auto whole = whole_parameters(spec, 7);
    auto rounded = whole;
    for (auto& [name, value] : rounded) value = value.to(at::kBFloat16).to(at::kFloat);
    const Batch batch = random_batch(dims, samples, 3);
    const Reference expected = reference(dims, rounded, batch, 0.01, true);
    Model model(spec, whole, Precision::bf16);
    const Model::Step step = model.step(pass_of(batch, Precision::bf16, 0.01));
    EXPECT_NEAR(step.loss, expected.loss, 5e-3 * expected.loss);
    // As a vector; single elements near zero may be further off.
    for (const auto& [name, grad] : model.grads()) {
      const double error = gradient_error(name, grad, expected.grads.at(name), expected.grads);
      EXPECT_LT(error, (cancels(name) ? 2 : 1) * bf16_tolerance()) << name;
    }
  }
}

TEST(Blocks, GradientsAddUpOverMicroBatches) {
  for (const Dims& dims : {kEverything, kGpt, kBert, kSplit}) {
    const model::ModelSpec spec = decoder(dims);
    const auto whole = whole_parameters(spec, 7);
    const Batch all = random_batch(dims, 4, 3);
    Model together(spec, whole, Precision::f32);
    together.step(pass_of(all, Precision::f32));
    Model apart(spec, whole, Precision::f32);
    for (std::int64_t s = 0; s < 4; s += 2) {
      Batch half{{{"tokens", all.at("tokens").narrow(0, s, 2).contiguous()}, {"targets", all.at("targets").narrow(0, s, 2).contiguous()}}};
      half.first_sample = s;
      apart.step(pass_of(half, Precision::f32));
    }
    EXPECT_EQ(together.grads().size(), whole.size());
    for (const auto& [name, grad] : together.grads())
      EXPECT_LT(gradient_error(name, apart.grads().at(name), grad, together.grads()), 1e-5) << name;
  }
}

class Recomputation : public testing::TestWithParam<std::tuple<Dims, Precision>> {};

TEST_P(Recomputation, ChangesNoBit) {
  const auto& [dims, precision] = GetParam();
  const model::ModelSpec spec = decoder(dims);
  const auto whole = whole_parameters(spec, 7);
  const Batch batch = random_batch(dims, 2, 3);
  Model kept(spec, whole, precision);
  Model again(spec, whole, precision);
  Model attention_again(spec, whole, precision);
  Pass pass = pass_of(batch, precision);
  const double loss = kept.step(pass).loss;
  EXPECT_EQ(again.step(pass, true).loss, loss);
  pass.recompute_attention = true;
  EXPECT_EQ(attention_again.step(pass).loss, loss);
  EXPECT_EQ(kept.grads().size(), whole.size());
  for (const auto& [name, grad] : kept.grads()) {
    EXPECT_TRUE(at::equal(grad, again.grads().at(name))) << name;
    EXPECT_TRUE(at::equal(grad, attention_again.grads().at(name))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, Recomputation,
    testing::Combine(testing::Values(kEverything, kGpt, kBert, kSplit), testing::Values(Precision::f32, Precision::bf16)),
    [](const auto& info) {
      const Dims& dims = std::get<0>(info.param);
      return std::string(dims.split ? "split" : dims.bert ? "bert" : dims.gpt ? "gpt" : "llama") + model::name_of(std::get<1>(info.param));
    });

// As masked language models have it: few targets count, or none at all.
TEST(Blocks, ComputeTheLossesOfTheTargetsThatCount) {
  for (const Dims& dims : {kBert, kGpt})
    for (const std::int64_t every : {7, 1000}) {
      const model::ModelSpec spec = decoder(dims);
      const auto whole = whole_parameters(spec, 7);
      Batch batch = random_batch(dims, 2, 3);
      const at::Tensor counted = at::arange(1, 2 * dims.seq + 1).remainder(every).eq(0).view({2, dims.seq});
      batch.tensors["targets"] = batch.at("tokens").masked_fill(counted.logical_not(), -1);
      const Reference expected = reference(dims, whole, batch, 0.01, true);
      Model model(spec, whole, Precision::f32);
      const Model::Step step = model.step(pass_of(batch, Precision::f32, 0.01));
      EXPECT_NEAR(step.loss, expected.loss, 1e-5 * expected.loss);
      EXPECT_EQ(step.tokens, 2 * dims.seq / every);
      if (step.tokens > 0) {
        expect_equal_grads(model, expected, 1e-5);
      } else {
        for (const auto& [name, grad] : model.grads()) EXPECT_EQ(grad.abs().max().item<float>(), 0.0f) << name;
      }
    }
}

TEST(Blocks, RefuseTokenTypesThatTheModelLacks) {
  Dims dims = kBert;
  dims.token_types = true;
  Model model(decoder(dims), whole_parameters(decoder(dims), 7), Precision::f32);
  Batch batch = random_batch(dims, 1, 3);
  batch.tensors["token_types"][0][5] = 2;
  try {
    model.evaluate(pass_of(batch, Precision::f32));
    FAIL() << "took a token type of 2";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("a token type of the batch is not one of the model's 2"));
  }
}

TEST(Blocks, TheSameCallTwiceGivesTheSameBits) {
  const Dims dims{
      .hidden = 128, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 320, .vocab = 700, .seq = 128, .qkv_bias = true, .qk_norm = true};
  const model::ModelSpec spec = decoder(dims);
  const auto whole = whole_parameters(spec, 7);
  const Batch batch = random_batch(dims, 4, 3);
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    Model first(spec, whole, precision);
    Model second(spec, whole, precision);
    EXPECT_EQ(first.step(pass_of(batch, precision)).loss, second.step(pass_of(batch, precision)).loss);
    for (const auto& [name, grad] : first.grads()) EXPECT_TRUE(at::equal(grad, second.grads().at(name))) << name;
  }
}

TEST(Blocks, ParametersThatAreNotNeighboursGiveTheSameGradients) {
  const Dims& dims = kEverything;
  const model::ModelSpec spec = decoder(dims);
  const auto whole = whole_parameters(spec, 7);
  const Batch batch = random_batch(dims, 2, 3);
  Model flat(spec, whole, Precision::f32);
  Model scattered(spec, whole, Precision::f32, {}, Layout::scattered);
  flat.step(pass_of(batch, Precision::f32));
  scattered.step(pass_of(batch, Precision::f32));
  for (const auto& [name, grad] : flat.grads()) EXPECT_LT(relative_error(scattered.grads().at(name), grad), 1e-5) << name;
}

TEST(Blocks, EvaluationGivesTheTrainingLossAndTouchesNoGradient) {
  const Dims dims;
  const model::ModelSpec spec = decoder(dims);
  const auto whole = whole_parameters(spec, 7);
  const Batch batch = random_batch(dims, 2, 3);
  Model model(spec, whole, Precision::f32);
  const double loss = model.evaluate(pass_of(batch, Precision::f32));
  EXPECT_EQ(model.grads().size(), whole.size());
  for (const auto& [name, grad] : model.grads()) EXPECT_EQ(grad.abs().max().item<float>(), 0.0f) << name;
  EXPECT_EQ(loss, model.step(pass_of(batch, Precision::f32)).loss);
}

class Cache : public testing::TestWithParam<Dims> {};

TEST_P(Cache, GivesTheLogitsOfTheWholeSequence) {
  const Dims dims = GetParam();
  const model::ModelSpec spec = decoder(dims);
  const auto whole = whole_parameters(spec, 7);
  const std::int64_t samples = 2;
  const Batch all{{{"tokens", random_batch(dims, samples, 3).at("tokens")}}};
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    Model model(spec, whole, precision);
    const at::Tensor expected = model.logits(pass_of(all, precision));
    const auto options = at::TensorOptions(precision == Precision::f32 ? at::kFloat : at::kBFloat16);
    std::vector<KeyValueCache> caches(static_cast<std::size_t>(dims.layers));
    for (KeyValueCache& cache : caches) {
      cache.keys = at::empty({samples, dims.kv_heads, dims.seq, dims.head()}, options);
      cache.values = at::empty_like(cache.keys);
    }
    std::int64_t position = 0;
    for (const std::int64_t length : {9, 1, 1, 12, 1, 8}) {  // a prompt, single tokens, more text, ...
      Batch part{{{"tokens", all.at("tokens").narrow(1, position, length).contiguous()}}};
      Pass pass = pass_of(part, precision);
      pass.position = position;
      const at::Tensor logits = model.logits(pass, &caches);
      EXPECT_LT(relative_error(logits, expected.narrow(1, position, length)), precision == Precision::f32 ? 1e-5 : 3e-2)
          << "from position " << position;
      position += length;
    }
    EXPECT_EQ(position, dims.seq);
  }
}

// GPT-2's, and of Llama's no window and windows that end within the cached part, within the new one and beyond both.
std::vector<Dims> cached() {
  std::vector<Dims> out = {{.kv_heads = 4, .gpt = true}, {.gpt = true, .positions = "rotary"}};
  for (const std::int64_t window : {0, 1, 5, 11, 32, 100})
    out.push_back({.head_dim = 24, .window = window, .qkv_bias = true, .qk_norm = true, .scaled = true});
  return out;
}
INSTANTIATE_TEST_SUITE_P(Forms, Cache, testing::ValuesIn(cached()));

TEST(Blocks, GenerateBeyondTheTrainedLength) {
  const Dims dims;
  const model::ModelSpec spec = decoder(dims);
  Model model(spec, whole_parameters(spec, 7), Precision::f32);
  Dims longer = dims;
  longer.seq = 3 * dims.seq;
  const Batch batch{{{"tokens", random_batch(longer, 1, 3).at("tokens")}}};
  EXPECT_EQ(model.logits(pass_of(batch, Precision::f32)).sizes(), at::IntArrayRef({1, longer.seq, dims.vocab}));
}

TEST(Blocks, RefusePositionsBehindTheLastLearnedOne) {
  const Dims dims{.kv_heads = 4, .gpt = true};
  Model model(decoder(dims), whole_parameters(decoder(dims), 7), Precision::f32);
  Dims longer = dims;
  longer.seq = dims.seq + 1;
  const Batch batch{{{"tokens", random_batch(longer, 1, 3).at("tokens")}}};
  try {
    model.logits(pass_of(batch, Precision::f32));
    FAIL() << "took 33 positions";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("a sample has 33 positions, and the model has 32"));
  }
}

TEST(Blocks, AnUnknownKindIsAnsweredWithTheKnownOnes) {
  model::BlockSpec spec = decoder({}).repeats[0].block;
  spec.kind = "convolution";
  try {
    make_block(spec, {});
    FAIL() << "made a block of an unknown kind";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_THAT(error.what(), testing::HasSubstr("convolution"));
    EXPECT_THAT(error.what(),
                testing::HasSubstr("expected one of: attention_sublayer, classifier, conv_layer, cross, decoder_layer, embedding"));
  }
}

TEST(Blocks, TokensOutsideTheVocabularyAreRefused) {
  const Dims dims;
  const model::ModelSpec spec = decoder(dims);
  Model model(spec, whole_parameters(spec, 7), Precision::f32);
  Batch batch = random_batch(dims, 1, 3);
  batch.tensors["tokens"][0][5] = dims.vocab;
  EXPECT_THROW(model.evaluate(pass_of(batch, Precision::f32)), Error);
  batch = random_batch(dims, 1, 3);
  batch.tensors["targets"][0][5] = -2;
  try {
    model.evaluate(pass_of(batch, Precision::f32));
    FAIL() << "took a target of -2";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("a target of the batch is -2, outside the model's vocabulary of 160"));
  }
}

TEST(Blocks, HeadsThatDoNotDivideAreRefused) {
  const model::ModelSpec spec = decoder({.kv_heads = 2});
  EXPECT_THROW(make_block(spec.repeats[1].block, {0, 4}), Error);
}

}  // namespace
}  // namespace tessera::nn::test
