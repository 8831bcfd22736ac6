#include <gmock/gmock.h>
#include <rapidcheck.h>
#include <cmath>
#include <set>

#include "base/expect_error.hpp"
#include "model/model.hpp"

namespace tessera::model {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

ModelSpec model_of(const std::string& yaml) { return read_model(ConfigNode::parse(yaml, "m.yaml")); }
Error refused(const std::string& yaml) {
  return error_of([&] { model_of(yaml); });
}

// Parameter counts as published with the weights.
TEST(Llama, CountsTheParametersOfKnownModels) {
  EXPECT_EQ(model_of("{arch: llama, hidden: 4096, layers: 32, heads: 32, ffn: 11008, seq: 4096, vocab: 32000}").parameter_count(),
            6'738'415'616);
  EXPECT_EQ(model_of("{arch: llama, hidden: 5120, layers: 40, heads: 40, ffn: 13824, seq: 4096, vocab: 32000}").parameter_count(),
            13'015'864'320);
  EXPECT_EQ(
      model_of("{arch: llama, hidden: 8192, layers: 80, heads: 64, kv_heads: 8, ffn: 28672, seq: 4096, vocab: 32000}").parameter_count(),
      68'976'648'192);
  EXPECT_EQ(
      model_of("{arch: llama, hidden: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, seq: 8192, vocab: 128256}").parameter_count(),
      8'030'261'248);
  EXPECT_EQ(
      model_of("{arch: llama, hidden: 2048, layers: 22, heads: 32, kv_heads: 4, ffn: 5632, seq: 2048, vocab: 32000}").parameter_count(),
      1'100'048'384);
}

TEST(Llama, CountsTiedEmbeddingsOnce) {
  // Llama 3.2 1B.
  const std::string shape = "{arch: llama, hidden: 2048, layers: 16, heads: 32, kv_heads: 8, ffn: 8192, seq: 8192, vocab: 128256, tied: ";
  const ModelSpec tied = model_of(shape + "true}");
  EXPECT_EQ(tied.parameter_count(), 1'235'814'400);
  EXPECT_EQ(model_of(shape + "false}").parameter_count(), 1'235'814'400 + 128256LL * 2048);
  EXPECT_EQ(tied.repeats.back().block.parameters.back().tied_to, "model.embed_tokens.weight");
}

TEST(Llama, NamesEachParameterAsTransformersDoes) {
  const ModelSpec model = model_of("{arch: llama, hidden: 8, layers: 2, heads: 2, ffn: 12, seq: 4, vocab: 300}");
  std::set<std::string> names;
  for (const BlockInstance& block : model.blocks())
    for (const ParameterSpec& parameter : block.spec->parameters) EXPECT_TRUE(names.insert(block.parameter_name(parameter)).second);
  EXPECT_EQ(names.size(), 1u + 2 * 9 + 2);
  for (const char* name : {"model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.down_proj.weight",
                           "model.layers.1.post_attention_layernorm.weight", "model.norm.weight", "lm_head.weight"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_EQ(model.block_count(), 4);
  EXPECT_EQ(model.blocks()[2].name(), "layers.1");
  EXPECT_EQ(model.blocks()[2].index, 2);
}

TEST(Llama, DecaysMatricesOnly) {
  const ModelSpec model = model_of("{arch: llama, hidden: 8, layers: 1, heads: 2, ffn: 12, seq: 4, vocab: 300}");
  for (const BlockInstance& block : model.blocks())
    for (const ParameterSpec& parameter : block.spec->parameters) EXPECT_EQ(parameter.decay, parameter.shape.size() == 2) << parameter.name;
}

TEST(Llama, PassesEachBlocksOutputToTheNext) {
  const ModelSpec model = model_of("{arch: llama, hidden: 8, layers: 2, heads: 2, ffn: 12, seq: 4, vocab: 300}");
  const auto blocks = model.blocks();
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    ASSERT_EQ(blocks[i].spec->inputs.size(), 1u);
    EXPECT_EQ(blocks[i].spec->inputs[0].name, blocks[i - 1].spec->outputs[0].name);
    EXPECT_EQ(blocks[i].spec->inputs[0].shape, blocks[i - 1].spec->outputs[0].shape);
  }
}

TEST(Llama, NamesTheNearestDimensionThatDivides) {
  EXPECT_STREQ(refused("arch: llama\nhidden: 512\nlayers: 2\nheads: 8\nkv_heads: 3\nffn: 8\nseq: 4\nvocab: 300\n").what(),
               "m.yaml:5:11: kv_heads: 3 does not divide heads 8; expected a divisor of 8\n  nearest: 2");
  const Error heads = refused("arch: llama\nhidden: 512\nlayers: 2\nheads: 7\nffn: 8\nseq: 4\nvocab: 300\n");
  EXPECT_STREQ(heads.what(), "m.yaml:4:8: heads: 7 does not divide hidden 512; expected a divisor of 512\n  nearest: 8");
}

TEST(Llama, RefusesWhatCannotBeBuilt) {
  EXPECT_THAT(refused("arch: lama").hint(), HasSubstr("did you mean 'llama'?"));
  EXPECT_THAT(refused("hidden: 8").what(), HasSubstr("the key 'arch' is missing"));
  EXPECT_THAT(refused("{arch: llama, hidden: 8}").what(), HasSubstr("the key 'layers' is missing"));
  EXPECT_THAT(refused("{arch: llama, hiden: 8}").what(), HasSubstr("did you mean 'hidden'?"));
  EXPECT_THAT(refused("{arch: llama, hidden: 6, layers: 1, heads: 2, ffn: 8, seq: 4, vocab: 300}").what(),
              HasSubstr("expected an even head_dim"));
  EXPECT_THAT(refused("{arch: llama, hidden: 8, layers: 0, heads: 2, ffn: 8, seq: 4, vocab: 300}").what(), HasSubstr("layers: found 0"));
  EXPECT_THAT(refused("{arch: llama, hidden: 8, layers: 1, heads: 2, ffn: 8, seq: 4, vocab: 300, rope_theta: 0}").what(),
              HasSubstr("must be positive"));
  EXPECT_THAT(refused("{arch: llama, hidden: 8, layers: 1, heads: 2, ffn: 8, seq: 4, vocab: 300, norm_eps: -1}").what(),
              HasSubstr("norm_eps"));
}

TEST(Llama, ReadsScaledRotaryPositionsAsConfigJsonHasThem) {
  const std::string base = "{arch: llama, hidden: 16, layers: 2, heads: 4, ffn: 24, seq: 8, vocab: 300, rope_scaling: ";
  const ModelSpec model = model_of(base + "{rope_type: llama3, factor: 8, original_max_position_embeddings: 8192}}");
  const BlockSpec& layer = model.repeats[1].block;
  EXPECT_EQ(layer.real("rope_factor"), 8);
  EXPECT_EQ(layer.real("rope_low_freq"), 1);
  EXPECT_EQ(layer.real("rope_high_freq"), 4);
  EXPECT_EQ(layer.real("rope_original_seq"), 8192);
  EXPECT_EQ(model.fingerprint(), model_of(base + "{rope_type: llama3, factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, "
                                                 "original_max_position_embeddings: 8192}}")
                                     .fingerprint());
  EXPECT_FALSE(model_of(base + "null}").dims.contains("rope_factor"));
  const auto said = [&](const std::string& scaling) { return std::string(refused(base + scaling + "}").what()); };
  EXPECT_THAT(said("{rope_type: linear, factor: 8}"), HasSubstr("llama3"));
  EXPECT_THAT(said("{rope_type: llama3, factor: 8}"), HasSubstr("'original_max_position_embeddings' is missing"));
  EXPECT_THAT(said("{rope_type: llama3, factor: 0.5, original_max_position_embeddings: 64}"), HasSubstr("factor is 0.5"));
  EXPECT_THAT(said("{rope_type: llama3, factor: .nan, original_max_position_embeddings: 64}"), HasSubstr("factor"));
  EXPECT_THAT(said("{rope_type: llama3, factor: 8, high_freq_factor: 1, original_max_position_embeddings: 64}"),
              HasSubstr("above low_freq_factor, 1"));
  EXPECT_THAT(said("{rope_type: llama3, faktor: 8, original_max_position_embeddings: 64}"), HasSubstr("did you mean 'factor'?"));
}

TEST(Llama, ReadsRotaryPositionsScaledByYarn) {
  const std::string base = "{arch: llama, hidden: 16, layers: 2, heads: 4, ffn: 24, seq: 8, vocab: 300, rope_scaling: ";
  const std::string yarn = "{rope_type: yarn, factor: 4, original_max_position_embeddings: 64";
  const ModelSpec model = model_of(base + yarn + "}}");
  const BlockSpec& layer = model.repeats[1].block;
  EXPECT_EQ(layer.real("rope_factor"), 4);
  EXPECT_EQ(layer.real("rope_beta_fast"), 32);
  EXPECT_EQ(layer.real("rope_beta_slow"), 1);
  EXPECT_EQ(layer.real("rope_whole_pairs"), 1);
  EXPECT_DOUBLE_EQ(layer.real("rope_amplitude"), 0.1 * std::log(4) + 1);
  EXPECT_FALSE(layer.dims.contains("rope_score_scale"));
  const auto amplitude = [&](const std::string& more) {
    return model_of(base + yarn + more + "}}").repeats[1].block.real("rope_amplitude");
  };
  EXPECT_EQ(amplitude(", attention_factor: 1.5"), 1.5);
  EXPECT_EQ(amplitude(", mscale: 0.7, mscale_all_dim: 0.7"), 1);
  const auto said = [&](const std::string& more) { return std::string(refused(base + yarn + more + "}}").what()); };
  EXPECT_THAT(said(", beta_fast: 1"), HasSubstr("above beta_slow, 1"));
  EXPECT_THAT(said(", low_freq_factor: 1"), HasSubstr("low_freq_factor"));
  EXPECT_THAT(said(", attention_factor: -1"), HasSubstr("attention_factor is -1"));
}

// So that one product makes queries, keys and values, with biases as without.
TEST(Llama, TheWeightsOfQueriesKeysAndValuesLieSideBySide) {
  const ModelSpec model =
      model_of("{arch: llama, hidden: 8, layers: 1, heads: 2, ffn: 12, seq: 4, vocab: 300, qkv_bias: true, qk_norm: true}");
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : model.repeats[1].block.parameters) names.push_back(parameter.name);
  const std::string a = "model.layers.{}.self_attn.";
  EXPECT_THAT(std::vector(names.begin() + 1, names.begin() + 10),
              ::testing::ElementsAre(a + "q_proj.weight", a + "k_proj.weight", a + "v_proj.weight", a + "q_proj.bias", a + "k_proj.bias",
                                     a + "v_proj.bias", a + "o_proj.weight", a + "q_norm.weight", a + "k_norm.weight"));
}

TEST(Llama, FingerprintsChangeWithWhatShapesTheModel) {
  const std::string base = "{arch: llama, hidden: 16, layers: 2, heads: 4, ffn: 24, seq: 8, vocab: 300";
  std::set<std::string> prints;
  for (const char* rest : {"}", ", tied: true}", ", kv_heads: 2}", ", head_dim: 8}", ", rope_theta: 500000}", ", norm_eps: 1e-6}",
                           ", qkv_bias: true}", ", qk_norm: true}", ", window: 5}", ", window: 6}",
                           ", rope_scaling: {rope_type: llama3, factor: 8, original_max_position_embeddings: 4}}",
                           ", rope_scaling: {rope_type: llama3, factor: 32, original_max_position_embeddings: 4}}"})
    EXPECT_TRUE(prints.insert(model_of(base + rest).fingerprint()).second) << rest;
  EXPECT_EQ(model_of(base + "}").fingerprint(), model_of(base + ", kv_heads: 4, head_dim: 4}").fingerprint());
  EXPECT_EQ(prints.begin()->size(), 16u);
}

TEST(Llama, CountsAgreeWithTheFormulaForAnyShape) {
  EXPECT_TRUE(rc::check([] {
    const std::int64_t kv_heads = *rc::gen::inRange(1, 9);
    const std::int64_t heads = kv_heads * *rc::gen::inRange(1, 5);
    const std::int64_t head_dim = 2 * *rc::gen::inRange(1, 33);
    const std::int64_t hidden = *rc::gen::inRange(1, 513);
    const std::int64_t ffn = *rc::gen::inRange(1, 2049);
    const std::int64_t layers = *rc::gen::inRange(1, 100);
    const std::int64_t vocab = *rc::gen::inRange(1, 100'000);
    const bool tied = *rc::gen::arbitrary<bool>();
    const bool biased = *rc::gen::arbitrary<bool>();
    const bool normalized = *rc::gen::arbitrary<bool>();
    const ModelSpec model =
        model_of(text("{arch: llama, hidden: ", hidden, ", layers: ", layers, ", heads: ", heads, ", kv_heads: ", kv_heads,
                      ", head_dim: ", head_dim, ", ffn: ", ffn, ", seq: 8, vocab: ", vocab, ", tied: ", tied ? "true" : "false",
                      ", qkv_bias: ", biased ? "true" : "false", ", qk_norm: ", normalized ? "true" : "false", "}"));
    const std::int64_t layer = hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * ffn + 2 * hidden +
                               (biased ? head_dim * (heads + 2 * kv_heads) : 0) + (normalized ? 2 * head_dim : 0);
    RC_ASSERT(model.parameter_count() == layers * layer + (tied ? 1 : 2) * vocab * hidden + hidden);
  }));
}

}  // namespace
}  // namespace tessera::model
