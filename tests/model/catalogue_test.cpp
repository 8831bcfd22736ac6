// The catalogue against transformers' models: parameters by name, FLOPs as torch counts them, and published sizes.
#include <gmock/gmock.h>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/expect_error.hpp"
#include "base/folders.hpp"
#include "base/temporary_folder.hpp"
#include "model/model.hpp"
#include "model/tensor_flow.hpp"

namespace tessera::model {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

ModelSpec model_of(const std::string& yaml) { return read_model(ConfigNode::parse(yaml, "m.yaml")); }
ModelSpec preset(const std::string& name) { return model_of("{preset: " + name + "}"); }

std::map<std::string, std::int64_t> counts_of(const ModelSpec& model) {
  std::map<std::string, std::int64_t> counts;
  for (const BlockInstance& block : model.blocks())
    for (const ParameterSpec& parameter : block.spec->parameters) {
      if (!parameter.tied_to.empty()) continue;
      // A buffer in transformers.
      if (parameter.name.ends_with("e_score_correction_bias")) continue;
      EXPECT_TRUE(counts.emplace(block.parameter_name(parameter), parameter.count()).second) << parameter.name;
    }
  return counts;
}

Flops sum_of(const ModelSpec& model, std::int64_t samples, Flops BlockCost::*pass) {
  Flops total;
  for (const Repeat& repeat : model.repeats) total += static_cast<double>(repeat.count) * (cost_of(repeat.block, {samples}).*pass);
  return total;
}

// What reference.py prints; null when the wheels of the tests are not installed.
nlohmann::json reference(const std::string& argument) {
  const std::string python = text(kSourceFolder, "/.venv/bin/python");
  if (!std::filesystem::exists(python)) return {};
  const std::string command = text(python, " ", kSourceFolder, "/tests/model/reference.py ", argument);
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[4096];
  while (pipe != nullptr && std::fgets(buffer, sizeof buffer, pipe) != nullptr) output += buffer;
  const int status = pipe == nullptr ? -1 : pclose(pipe);
  if (status != 0) throw Error(ErrorCode::internal, text("the reference count failed with status ", status));
  return nlohmann::json::parse(output);
}

// What config.json does not say: how attention ran on the CPU.
ModelSpec imported(const std::string& name, const nlohmann::json& config) {
  if (name == "vit") return model_of("{arch: vit, hidden: 64, layers: 3, heads: 8, image: 64, patch: 16, classes: 10}");
  if (name.starts_with("resnet")) return model_of("{arch: " + name + ", image: 64, classes: 10}");
  const TemporaryFolder folder;
  const auto file = folder.write("config.json", config.dump());
  // Dropout, and heads of values that are not as wide as those of keys, send torch's attention through separate products.
  const bool fused = !config.contains("kv_lora_rank") && config.value("attention_dropout", 0.0) == 0 && !config.contains("dropout_rate") &&
                     !config.contains("attn_pdrop") && !config.contains("attention_probs_dropout_prob");
  return model_of(text("{hf: ", file.string(), ", attention: ", fused ? "fused" : "unfused", "}"));
}

TEST(Catalogue, ParametersAndFlopsAreThoseOfTransformers) {
  const nlohmann::json cases = reference("");
  if (cases.is_null()) GTEST_SKIP() << "needs .venv with transformers: ./dev setup";
  EXPECT_EQ(cases.size(), 16u);
  for (const auto& [name, found] : cases.items()) {
    SCOPED_TRACE(name);
    const ModelSpec model = imported(name, found.at("config"));
    const auto theirs = found.at("parameters").get<std::map<std::string, std::int64_t>>();
    if (name.starts_with("resnet")) {
      std::int64_t total = 0;
      for (const auto& [parameter, count] : theirs) total += count;
      EXPECT_EQ(model.parameter_count(), total);
    } else {
      EXPECT_EQ(counts_of(model), theirs);
    }
    const double forward = found.at("forward").get<double>();
    const double backward = found.at("backward").get<double>();
    EXPECT_NEAR(sum_of(model, 2, &BlockCost::forward).value, forward, 0.01 * forward);
    EXPECT_NEAR(sum_of(model, 2, &BlockCost::backward).value, backward, 0.01 * backward);
  }
}

TEST(Catalogue, PresetsHaveTheParametersOfTransformersModels) {
  const nlohmann::json cases = reference("published");
  if (cases.is_null()) GTEST_SKIP() << "needs .venv with transformers: ./dev setup";
  EXPECT_EQ(cases.size(), 13u);
  for (const auto& [name, found] : cases.items()) {
    SCOPED_TRACE(name);
    EXPECT_EQ(counts_of(preset(name)), (found.at("parameters").get<std::map<std::string, std::int64_t>>()));
  }
}

// As torchvision publishes them with its weights.
TEST(Catalogue, PictureModelsHaveTheirPublishedSize) {
  struct Known {
    const char* name;
    std::int64_t parameters;
    double giga_products;  // of one forward pass of a 224 x 224 image
  };
  for (const Known& known : std::initializer_list<Known>{{"resnet18", 11'689'512, 1.81},
                                                         {"resnet34", 21'797'672, 3.66},
                                                         {"resnet50", 25'557'032, 4.09},
                                                         {"resnet101", 44'549'160, 7.80},
                                                         {"resnet152", 60'192'808, 11.51},
                                                         {"vgg11", 132'863'336, 7.61},
                                                         {"vgg13", 133'047'848, 11.31},
                                                         {"vgg16", 138'357'544, 15.47},
                                                         {"vgg19", 143'667'240, 19.63},
                                                         {"vit-b-16", 86'567'656, 17.56},
                                                         {"vit-l-16", 304'326'632, 61.55}}) {
    SCOPED_TRACE(known.name);
    const ModelSpec model = preset(known.name);
    EXPECT_EQ(model.parameter_count(), known.parameters);
    EXPECT_NEAR(sum_of(model, 1, &BlockCost::forward).value / 2e9, known.giga_products, 0.01 * known.giga_products);
  }
  EXPECT_EQ(model_of("{arch: vgg16, norm: true}").parameter_count(), 138'365'992);
  EXPECT_EQ(model_of("{arch: resnet, depth: 50}").parameter_count(), 25'557'032);
  EXPECT_EQ(model_of("{arch: resnet50, split_layers: true}").parameter_count(), 25'557'032);
}

TEST(Catalogue, LanguageModelsHaveTheirPublishedSize) {
  struct Known {
    const char* name;
    double total;  // billions, as the reports round them
    double active;
    double within;
  };
  for (const Known& known : std::initializer_list<Known>{{"mixtral-8x7b", 46.7, 12.9, 0.05},
                                                         {"mixtral-8x22b", 141, 39, 0.5},
                                                         {"deepseek-v3", 671, 37, 0.6},
                                                         {"deepseek-v2", 236, 21, 0.5},
                                                         {"deepseek-v2-lite", 15.7, 2.4, 0.3},
                                                         {"qwen3-30b-a3b", 30.5, 3.3, 0.1},
                                                         {"qwen3-235b-a22b", 235, 22, 0.3},
                                                         {"qwen2-57b-a14b", 57.4, 14.2, 0.1},
                                                         {"pangu-ultra", 135, 135, 1.5},
                                                         {"gpt3-175b", 175, 175, 0.7},
                                                         {"bloom-176b", 176.2, 176.2, 0.1},
                                                         {"megatron-1t", 1008, 1008, 1},
                                                         {"t5-11b", 11.3, 11.3, 0.1},
                                                         {"llama-3-405b", 405.9, 405.9, 0.1}}) {
    SCOPED_TRACE(known.name);
    const ModelSpec model = preset(known.name);
    EXPECT_NEAR(static_cast<double>(model.parameter_count()) / 1e9, known.total, known.within);
    EXPECT_NEAR(static_cast<double>(model.active_parameter_count()) / 1e9, known.active, known.within);
  }
}

TEST(Catalogue, EveryPresetCanBePlanned) {
  for (const std::string& name : preset_names()) {
    SCOPED_TRACE(name);
    const ModelSpec model = preset(name);
    for (const char* key : {"seq", "hidden", "heads", "kv_heads"}) EXPECT_GE(model.dim(key), 1) << key;
    for (const char* key : {"ffn", "vocab"}) EXPECT_GE(model.dim(key), 0) << key;
    EXPECT_GT(training_flops_per_sample(model).value, 0);
    for (const Repeat& repeat : model.repeats)
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        const BlockCost cost = cost_of(repeat.block, {2, 1, Precision::bf16, recompute});
        EXPECT_GT(cost.output.value, 0) << repeat.block.name;
        EXPECT_FALSE(cost.forward_operators.empty()) << repeat.block.name;
        EXPECT_GE(cost.backward_workspace.value, 0) << repeat.block.name;
      }
    EXPECT_NO_THROW(tensor_flow(model));
  }
}

TEST(Catalogue, KeysBesideAPresetChangeSingleValues) {
  const ModelSpec model = model_of("{preset: llama-3-8b, seq: 2048, layers: 2}");
  EXPECT_EQ(model.dim("seq"), 2048);
  EXPECT_EQ(model.dim("layers"), 2);
  EXPECT_EQ(model.dim("hidden"), 4096);
  EXPECT_EQ(preset("llama-2-7b").fingerprint(),
            model_of("{arch: llama, hidden: 4096, layers: 32, heads: 32, ffn: 11008, seq: 4096, vocab: 32000}").fingerprint());
  EXPECT_THAT(error_of([] { model_of("preset: llama-3-8b\nsek: 2048\n"); }).what(),
              AllOf(HasSubstr("m.yaml:2:1"), HasSubstr("did you mean 'seq'?")));
  EXPECT_THAT(error_of([] { preset("llama-3-9b"); }).what(),
              AllOf(HasSubstr("there is no preset 'llama-3-9b'"), HasSubstr("did you mean 'llama-3-8b'?")));
  EXPECT_THAT(error_of([] { model_of("{preset: llama-3-8b, arch: gpt}"); }).what(), HasSubstr("exclude each other"));
}

TEST(Catalogue, NnBuildsLlamasFormAlone) {
  EXPECT_EQ(preset("llama-3-8b").repeats[1].block.kind, "transformer_layer");
  for (const char* name : {"qwen2-7b", "qwen3-8b", "mistral-7b", "llama-3.2-1b"})
    EXPECT_EQ(preset(name).repeats[1].block.kind, "transformer_layer") << name;
  EXPECT_EQ(model_of("{preset: llama-3-8b, dropout: 0.1}").repeats[1].block.kind, "decoder_layer");
  EXPECT_EQ(preset("pangu-ultra").repeats[1].block.kind, "decoder_layer");
  EXPECT_EQ(preset("mixtral-8x7b").repeats[1].block.kind, "moe_layer");
  EXPECT_EQ(preset("deepseek-v3").repeats[1].block.kind, "decoder_layer");
  EXPECT_EQ(preset("deepseek-v3").repeats[2].block.kind, "moe_layer");
  EXPECT_EQ(preset("deepseek-v3").repeats[2].first_index, 3);
}

TEST(Catalogue, ADecoderReadsTheEncodersOutput) {
  const ModelSpec model =
      model_of("{arch: t5, hidden: 64, layers: 3, decoder_layers: 2, heads: 8, ffn: 96, seq: 32, decoder_seq: 16, vocab: 320}");
  EXPECT_EQ(model.block_count(), 1 + 3 + 1 + 1 + 2 + 1);
  const BlockSpec& layer = model.repeats[5].block;
  EXPECT_EQ(layer.name, "decoder.{}");
  ASSERT_EQ(layer.inputs.size(), 2u);
  EXPECT_EQ(layer.inputs[1].name, "encoded");
  EXPECT_THAT(layer.inputs[1].shape, ::testing::ElementsAre(32, 64));
  EXPECT_THAT(layer.outputs[0].shape, ::testing::ElementsAre(16, 64));
  const std::vector<BlockFlow> flow = tensor_flow(model);
  const auto names = [&](std::size_t block) {
    std::vector<std::string> out;
    for (const TensorSpec& tensor : flow[block].before) out.push_back(tensor.name);
    return out;
  };
  EXPECT_THAT(names(4), ::testing::ElementsAre("encoder"));
  EXPECT_THAT(names(5), ::testing::ElementsAre("encoded"));
  EXPECT_THAT(names(6), ::testing::ElementsAre("encoded", "decoder"));
  EXPECT_THAT(names(7), ::testing::ElementsAre("encoded", "decoder"));
  EXPECT_THAT(names(8), ::testing::ElementsAre("decoder"));
  // The layers of a side share the first one's table of relative positions.
  const auto tables = [](const Repeat& repeat) {
    std::vector<std::string> owners;
    for (const ParameterSpec& parameter : repeat.block.parameters)
      if (parameter.name.ends_with("relative_attention_bias.weight")) owners.push_back(parameter.tied_to);
    return owners;
  };
  EXPECT_THAT(tables(model.repeats[5]), ::testing::ElementsAre(""));
  EXPECT_THAT(tables(model.repeats[6]), ::testing::ElementsAre("decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"));
  // Two attentions and the feed-forward network; the gradient of the encoder's output is summed too.
  const BlockCost divided = cost_of(layer, {2, 2});
  EXPECT_EQ(divided.forward_all_reduces, 3);
  EXPECT_EQ(divided.backward_all_reduces, 4);
}

// Whoever holds it makes its initial values.
TEST(Catalogue, ASharedParameterBeginsTheSameForAllWhoHoldIt) {
  for (const std::string& name : preset_names()) {
    const ModelSpec model = preset(name);
    std::map<std::string, Initializer> owned;
    for (const Repeat& repeat : model.repeats)
      for (const ParameterSpec& parameter : repeat.block.parameters)
        if (parameter.tied_to.empty())
          owned[BlockInstance{&repeat.block, 0, repeat.first_index}.parameter_name(parameter)] = parameter.init;
    for (const Repeat& repeat : model.repeats)
      for (const ParameterSpec& parameter : repeat.block.parameters) {
        if (parameter.tied_to.empty()) continue;
        ASSERT_TRUE(owned.contains(parameter.tied_to)) << name << " " << parameter.name;
        EXPECT_EQ(parameter.init.kind, owned[parameter.tied_to].kind) << name << " " << parameter.name;
        EXPECT_EQ(parameter.init.scale, owned[parameter.tied_to].scale) << name << " " << parameter.name;
      }
  }
}

TEST(Catalogue, EncodersFeedATrunk) {
  const std::string text_encoder = "{arch: bert, hidden: 64, layers: 2, heads: 8, seq: 32, vocab: 320}";
  const std::string encoders = "{arch: branches, encoders: {image: {preset: vit-l-16}, text: " + text_encoder + "}, ";
  const ModelSpec model = model_of(encoders + "trunk: {preset: llama-2-7b}}");
  const ModelSpec vit = preset("vit-l-16");
  const ModelSpec bert = model_of(text_encoder);
  const ModelSpec llama = preset("llama-2-7b");
  const auto without_head = [](const ModelSpec& whole) { return whole.parameter_count() - whole.repeats.back().block.parameter_count(); };
  EXPECT_EQ(model.parameter_count(),
            without_head(vit) + 1024 * 4096 + 4096 + without_head(bert) + 64 * 4096 + 4096 + llama.parameter_count());
  // Names stay unique.
  const auto named = [](const ModelSpec& whole) { return counts_of(whole).size(); };
  EXPECT_EQ(named(model), (named(vit) - 4) + (named(bert) - 5) + 2 * 2 + named(llama));
  const auto found =
      std::find_if(model.repeats.begin(), model.repeats.end(), [](const Repeat& repeat) { return repeat.block.name == "embed"; });
  ASSERT_NE(found, model.repeats.end());
  const BlockSpec& first = found->block;
  EXPECT_THAT(first.inputs[0].name + " " + first.inputs[1].name, "image text");
  ASSERT_EQ(first.inputs.size(), 2u);
  EXPECT_THAT(first.inputs[0].shape, ::testing::ElementsAre(197, 4096));
  EXPECT_EQ(model.dim("kv_heads"), 8);
  EXPECT_GT(training_flops_per_sample(model).value, training_flops_per_sample(llama).value);
  EXPECT_THAT(error_of([&] { model_of(encoders + "trunk: {preset: llama-2-7b, seq: 200}}"); }).what(), HasSubstr("a seq above 229"));
  EXPECT_THAT(error_of([] { model_of("{arch: branches, encoders: {image: {preset: resnet50}}, trunk: {preset: gpt2}}"); }).what(),
              HasSubstr("no sequence of vectors"));
}

// Figure 1 of Korthikanti et al.: all layers of the 22B model on eight ranks, micro-batch 4, and its interleaved 175B model.
TEST(Catalogue, ActivationsOfMegatronModelsAreThePublishedOnes) {
  const auto gib_of = [](const std::string& name, std::int64_t batch, bool sequence_parallel, Recompute recompute) {
    const ModelSpec model = preset(name);
    BlockShard shard{batch, 8, Precision::f16, recompute};
    shard.sequence_parallel = sequence_parallel;
    return static_cast<double>(cost_of(model.repeats[1].block, shard).saved.value) * model.repeats[1].count / (1LL << 30);
  };
  EXPECT_NEAR(gib_of("megatron-22b", 4, false, Recompute::none), 59.25, 0.005);
  EXPECT_NEAR(gib_of("megatron-22b", 4, true, Recompute::selective), 9.5625, 0.005);
  // Eight stages of three chunks keep 1 + 7/24 times one batch's activations.
  EXPECT_NEAR(gib_of("megatron-175b", 1, false, Recompute::none) * (1 + 7.0 / 24), 66.84, 0.01);
  EXPECT_NEAR(gib_of("megatron-175b", 1, true, Recompute::selective) * (1 + 7.0 / 24), 12.35, 0.01);
}

TEST(Catalogue, ExpertsAreDividedAndTheirTokensSent) {
  const BlockSpec layer =
      model_of("{arch: mixtral, hidden: 64, layers: 2, heads: 8, ffn: 96, experts: 8, experts_per_token: 2, seq: 32, vocab: 320}")
          .repeats[1]
          .block;
  const BlockCost one = cost_of(layer, {});
  BlockShard shard;
  shard.expert_parallel = 4;
  const BlockCost four = cost_of(layer, shard);
  // As many tokens arrive as leave, of fewer experts.
  EXPECT_DOUBLE_EQ(four.forward.value, one.forward.value);
  ASSERT_EQ(four.forward_exchanges.size(), 2u);
  EXPECT_EQ(four.forward_exchanges[0].operation, "all_to_all");
  EXPECT_EQ(four.forward_exchanges[0].bytes.value, 32 * 2 * 64 * 4);
  EXPECT_TRUE(one.forward_exchanges.empty());
}

TEST(Catalogue, TablesAreSparse) {
  const ModelSpec dlrm = preset("dlrm-mlperf");
  std::int64_t sparse = 0;
  for (const Repeat& repeat : dlrm.repeats)
    for (const ParameterSpec& parameter : repeat.block.parameters) sparse += parameter.sparse ? parameter.count() : 0;
  EXPECT_EQ(sparse, 204'184'588LL * 128);
  // 13-512-256-128, then 27 * 26 / 2 + 128 = 479 values to 1024-1024-512-256-1.
  const std::int64_t bottom = 13 * 512 + 512 + 512 * 256 + 256 + 256 * 128 + 128;
  const std::int64_t top = 479 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 256 + 256 + 256 + 1;
  EXPECT_EQ(dlrm.parameter_count() - sparse, bottom + top);
  // 33.8 million categories with a vector of ten and a weight each; 26 vectors and 13 numbers to 400-400-400-1.
  EXPECT_EQ(preset("deepfm-criteo").parameter_count(), 33'762'577LL * 11 + 13 + 273 * 400 + 400 + 2 * (400 * 400 + 400) + 400 + 1);
  EXPECT_EQ(model_of("{arch: deepfm, dim: 10, tables: 3, hidden: [400, 400]}").parameter_count(),
            30 * 400 + 400 + 400 * 400 + 400 + 400 + 1);
  EXPECT_EQ(preset("wide-deep-criteo").parameter_count(), preset("deepfm-criteo").parameter_count());
  const auto dcn = [](const std::string& more) {
    return model_of("{arch: dcn_v2, dim: 10, tables: 3, dense: 5, " + more + "}").parameter_count();
  };
  const std::int64_t width = 35, deep = width * 8 + 8;
  EXPECT_EQ(dcn("cross: 4, hidden: [8]"), 4 * (width * width + width) + deep + 8 + 1);
  EXPECT_EQ(dcn("cross: 1, rank: 6, hidden: [8]"), 2 * width * 6 + width + deep + 8 + 1);
  EXPECT_EQ(dcn("cross: 2, structure: parallel, hidden: [8]"), 2 * (width * width + width) + deep + width + 8 + 1);
  EXPECT_EQ(model_of("{arch: din, dim: 10, tables: 3, dense: 5, history: 9, attention: [7], hidden: [8]}").parameter_count(),
            40 * 7 + 7 + 7 + 1 + 45 * 8 + 8 + 8 + 1);
  const ModelSpec deepfm = model_of("{arch: deepfm, dim: 10, tables: [1000, 200, 30], hidden: [400, 400]}");
  EXPECT_EQ(deepfm.parameter_count(), 1230 * 11 + 30 * 400 + 400 + 400 * 400 + 400 + 400 + 1);
}

std::string refusal(const std::string& yaml) {
  return error_of([&] { model_of(yaml); }).what();
}

TEST(Catalogue, RefusesWhatDoesNotFitTogether) {
  EXPECT_THAT(refusal("{arch: lama}"), HasSubstr("did you mean 'llama'?"));
  EXPECT_THAT(refusal("{arch: gpt, hidden: 64, layers: 2, heads: 8, seq: 32, vocab: 320, max_positions: 16}"), HasSubstr("at least seq"));
  EXPECT_THAT(refusal("{arch: gpt, hidden: 64, layers: 2, heads: 8, seq: 32, vocab: 320, positions: alibi, max_positions: 64}"),
              HasSubstr("has no table"));
  EXPECT_THAT(refusal("{arch: mixtral, hidden: 64, layers: 2, heads: 8, ffn: 96, experts: 2, experts_per_token: 3, seq: 32, vocab: 320}"),
              HasSubstr("at most 2"));
  EXPECT_THAT(refusal("{arch: vit, hidden: 64, layers: 2, heads: 8, image: 65, patch: 16}"), HasSubstr("do not tile"));
  EXPECT_THAT(refusal("{arch: resnet, depth: 51}"), HasSubstr("one of: 18, 34, 50, 101, 152"));
  EXPECT_THAT(refusal("{arch: vgg11, image: 16}"), HasSubstr("at least 32"));
  EXPECT_THAT(refusal("{arch: vgg11, batch_norm: synchronized}"), HasSubstr("the model has no batch norm"));
  EXPECT_THAT(refusal("{arch: resnet18, batch_norm: synchronised}"), HasSubstr("synchronized"));
  EXPECT_THAT(refusal("{arch: dcn_v2, dim: 4, tables: 2, rank: 8, hidden: [4]}"), HasSubstr("less than 8"));
  EXPECT_THAT(refusal("{arch: din, dim: 4, tables: 2, history: 3, target: 2, hidden: [4]}"), HasSubstr("0 to 1"));
  EXPECT_THAT(refusal("{arch: dlrm, dim: 64, tables: [10], bottom: [128], top: [1]}"), HasSubstr("64 as the last width"));
  EXPECT_THAT(refusal("{arch: bert, hidden: 64, layers: 2, heads: 8, seq: 32, vocab: 320, dropout: 1.5}"), HasSubstr("below 1"));
  const std::string t5 = "{arch: t5, hidden: 64, layers: 2, heads: 8, ffn: 96, seq: 32, vocab: 320, ";
  EXPECT_THAT(refusal(t5 + "buckets: 3}"), HasSubstr("at least 4"));
  EXPECT_THAT(refusal(t5 + "max_distance: 16}"), HasSubstr("a max_distance above half of the buckets"));
  EXPECT_THAT(refusal("{arch: deepseek, hidden: 64}"), HasSubstr("the key 'layers' is missing"));
  EXPECT_THAT(refusal("{preset: gpt2, vocab: 4294967296}"), HasSubstr("at most 2147483647"));
  EXPECT_THAT(refusal("{preset: gpt2, layers: 2000000000}"), HasSubstr("layers is 2e+09; expected at most"));
  EXPECT_THAT(refusal("{preset: mixtral-8x7b, experts: 1000000000}"), HasSubstr("parameters"));
  EXPECT_THAT(refusal("{arch: resnet50, image: 1000000}"), HasSubstr("image is 1e+06"));
}

TEST(Import, NamesTheKeyThatIsMissingOrCannotBeSaid) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& json) {
    const auto file = folder.write("config.json", json);
    return refusal("{hf: " + file.string() + "}");
  };
  EXPECT_THAT(refused(R"({"model_type": "lama"})"), AllOf(HasSubstr("models of type 'lama'"), HasSubstr("did you mean 'llama'?")));
  EXPECT_THAT(refused(R"({"hidden_size": 64})"), HasSubstr("it has no model_type"));
  EXPECT_THAT(
      refused(
          R"({"model_type": "llama", "intermediate_size": 96, "num_attention_heads": 8, "num_hidden_layers": 2, "hiden_size": 64, "vocab_size": 320})"),
      AllOf(HasSubstr("has no hidden_size"), HasSubstr("did you mean 'hiden_size'?")));
  EXPECT_THAT(refused(R"({"model_type": "llama", "attention_bias": true})"), HasSubstr("attention_bias: false"));
  EXPECT_THAT(
      refused(
          R"({"model_type": "qwen2", "intermediate_size": 96, "num_attention_heads": 8, "num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 320,
          "use_sliding_window": true, "max_window_layers": 3})"),
      HasSubstr("1 of 4 layers look back through a window"));
  EXPECT_THAT(refused("{\"model_type\": \"llama\",\n\"intermediate_size\": -1}"), HasSubstr("config.json:2:"));
  EXPECT_THAT(refused("{\"model_type\": \"deepseek_v3\",\n\"moe_intermediate_size\": 4611686018427387905}"), HasSubstr("config.json:2:"));
  EXPECT_EQ(error_of([&] { model_of("{hf: " + (folder / "absent.json").string() + "}"); }).code(), ErrorCode::not_found);
}

TEST(Import, TakesTheSequenceFromTheSection) {
  const TemporaryFolder folder;
  const auto file = folder.write(
      "config.json",
      R"({"model_type": "mistral", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 32768, "sliding_window": 4096})");
  EXPECT_EQ(model_of("{hf: " + file.string() + "}").dim("seq"), 32768);
  EXPECT_EQ(model_of("{hf: " + file.string() + "}").dim("window"), 4096);
  const ModelSpec model = model_of("{hf: " + file.parent_path().string() + ", seq: 2048}");
  EXPECT_EQ(model.dim("seq"), 2048);
  EXPECT_EQ(model.repeats[1].block.kind, "transformer_layer");
}

TEST(Import, ReadsScaledRotaryPositionsAndWindowsAsTransformersDoes) {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& json) {
    const std::string shape =
        R"("hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8, "num_hidden_layers": 4, "num_key_value_heads": 2, "vocab_size": 320)";
    return model_of("{hf: " + folder.write("config.json", "{" + shape + ", " + json + "}").string() + "}");
  };
  const std::string numbers =
      R"("factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192)";
  for (const std::string& json :
       {R"("model_type": "llama", "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", )" + numbers + "}",
        R"("model_type": "llama", "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", )" + numbers + "}"}) {
    const ModelSpec model = read(json);
    EXPECT_EQ(model.dim("rope_theta"), 500000) << json;
    EXPECT_EQ(model.dim("rope_factor"), 32) << json;
    EXPECT_EQ(model.dim("rope_original_seq"), 8192) << json;
  }
  EXPECT_FALSE(read(R"("model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0})").dims.contains("rope_factor"));
  const auto window = [&](const std::string& json) {
    const ModelSpec model = read(json);
    return model.dims.contains("window") ? model.dim("window") : 0;
  };
  EXPECT_EQ(window(R"("model_type": "mistral", "sliding_window": null)"), 0);
  EXPECT_EQ(window(R"("model_type": "mistral")"), 4096);
  EXPECT_EQ(window(R"("model_type": "qwen2", "sliding_window": 128)"), 0);
  EXPECT_EQ(window(R"("model_type": "qwen2", "use_sliding_window": true, "sliding_window": 128, "max_window_layers": 4)"), 0);
  EXPECT_EQ(window(R"("model_type": "qwen3", "use_sliding_window": true, "sliding_window": 128, "max_window_layers": 0)"), 128);
}

}  // namespace
}  // namespace tessera::model
