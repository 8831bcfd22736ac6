#include "model/forms.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "model/vision_cost.hpp"

namespace tessera::model {
namespace {

struct Lack {
  std::string what;
  std::string expected;
};

std::optional<Lack> lack_of(const ModelSpec& model, const BlockSpec& block) {
  const auto said = [&](const char* key, double value) { return block.dims.contains(key) && block.dims.at(key) == value; };
  if (model.arch == "gpt" && said("relative_bias", 1))
    return Lack{"its GPT has learned or rotary positions, or none", "positions: learned, positions: rotary or positions: none"};
  if (said("next_sentence", 1)) return Lack{"its BERT predicts tokens, and not whether one sentence follows another", "head: mlm"};
  if (!computed_by_nn(block))
    return Lack{text("it cannot compute blocks of kind '", block.kind, "' yet"),
                "arch llama (Llama, Mistral, Qwen2 and Qwen3), mixtral, qwen_moe, deepseek, gpt, bert, t5, resnet, vgg, vit, dlrm, deepfm, "
                "wide_deep, dcn_v2 or din"};
  // What other frameworks do, which plans for them count with.
  if (is_of_t5(block) && said("attention_fused", 1))
    return Lack{"it computes attention with relative positions kernel by kernel, and the model says attention: fused",
                "attention: unfused"};
  if (!is_of_t5(block) && said("attention_fused", 0))
    return Lack{"it computes attention in one kernel, and the model says attention: unfused", "attention: fused"};
  if ((cut_by_nn(block) || is_of_t5(block)) && said("autograd", 1))
    return Lack{"its blocks keep what they need themselves, and the model says keeps: autograd", "keeps: tessera"};
  return {};
}

std::optional<Lack> lack_of(const ModelSpec& model, Precision precision) {
  if (!computed_by_nn(precision)) return Lack{text("precision ", name_of(precision)), "fp32 or bf16"};
  if (!model.plugin.empty()) return {};
  for (const Repeat& repeat : model.repeats)
    if (auto lack = lack_of(model, repeat.block)) return lack;
  return {};
}

}  // namespace

bool is_of_t5(const BlockSpec& block) { return block.dims.contains("buckets"); }

bool cut_by_nn(const BlockSpec& block) {
  constexpr std::array<std::string_view, 5> kPlain = {"embedding", "transformer_layer", "lm_head", "attention_sublayer",
                                                      "feed_forward_sublayer"};
  if (std::find(kPlain.begin(), kPlain.end(), block.kind) != kPlain.end()) return true;
  const auto has = [&](const char* key) { return block.dims.contains(key) && block.dims.at(key) != 0; };
  if (block.kind == "moe_layer") return true;
  if (block.kind == "mlp") return has("pixels");
  if (block.kind == "position_embedding" || block.kind == "language_head") return has("layer_norm") && has("gelu");
  if (block.kind == "encoder_layer") return has("post_norm");
  if (block.kind != "decoder_layer") return false;
  for (const char* key : {"norms", "relative_bias", "cross_seq"})
    if (has(key)) return false;
  return has("rope_theta") || has("layer_norm");
}

bool computed_by_nn(const BlockSpec& block) {
  constexpr std::array<std::string_view, 9> kWhole = {
      "conv_layer", "patch_embedding", "classifier", "mlp", "embedding_tables", "interaction", "features", "cross", "target_attention"};
  if (cut_by_nn(block) || is_of_t5(block) || is_residual(block) || std::find(kWhole.begin(), kWhole.end(), block.kind) != kWhole.end())
    return true;
  return block.kind == "encoder_layer" && block.dims.contains("patch");
}

bool computed_by_nn(Precision precision) { return precision == Precision::f32 || precision == Precision::bf16; }

void check_has_blocks(const ModelSpec& model, Precision precision, const Where& where) {
  if (const auto lack = lack_of(model, precision))
    throw Error(ErrorCode::invalid_config, "the trainer cannot run the model: " + lack->what, where, lack->expected,
                "`tessera plan` plans and simulates it, and with --write hands the plan to other trainers");
}

std::int64_t least_samples(const BlockSpec& block, std::int64_t replicas) {
  if (replicas > 1 && exchanges_over_replicas(block)) return 1;
  return is_residual(block) && block.outputs.front().shape.back() == 1 ? 2 : 1;
}

bool routes_to_experts(const BlockSpec& block) {
  return std::any_of(block.parameters.begin(), block.parameters.end(), [](const ParameterSpec& one) { return one.expert_dim >= 0; });
}

bool reads_images(const ModelSpec& model) {
  return model.dims.contains("image") && model.dims.contains("channels") && model.dims.contains("classes");
}

bool reads_clicks(const ModelSpec& model) { return model.dims.contains("tables"); }

std::int64_t history_of(const ModelSpec& model) { return model.dims.contains("history") ? model.dim("history") : 0; }

int tables_block(const ModelSpec& model) {
  for (const BlockInstance& block : model.blocks())
    if (block.spec->kind == "embedding_tables") return block.index;
  throw Error(ErrorCode::internal, "model " + model.arch + " has no tables");
}

std::int64_t lookups_of_sample(const BlockSpec& tables) {
  return tables.dim("tables") * tables.dim("lookups") + (tables.dims.contains("history") ? tables.dim("history") : 0);
}

std::vector<std::int64_t> table_rows(const ModelSpec& model) {
  const std::vector<ParameterSpec>& parameters = model.blocks().at(static_cast<std::size_t>(tables_block(model))).spec->parameters;
  std::vector<std::int64_t> rows;
  for (std::int64_t table = 0; table < model.dim("tables"); ++table)
    rows.push_back(parameters.at(static_cast<std::size_t>(table)).shape.front());
  return rows;
}

bool may_split_layers(const ModelSpec& model) {
  return std::any_of(model.repeats.begin(), model.repeats.end(), [](const Repeat& repeat) {
    return repeat.block.kind == kResidualBlock || (repeat.block.kind == "encoder_layer" && repeat.block.dims.contains("post_norm"));
  });
}

bool classifies(const ModelSpec& model) { return model.dims.contains("classes"); }

bool classifies_text(const ModelSpec& model) { return classifies(model) && !reads_images(model); }

const char* counted_in(const ModelSpec& model) {
  return reads_images(model) ? "images" : reads_clicks(model) || classifies_text(model) ? "samples" : "tokens";
}

bool predicts_masked_tokens(const ModelSpec& model) {
  const auto causal = model.dims.find("causal");
  return !classifies(model) && causal != model.dims.end() && causal->second == 0;
}

bool predicts_masked_spans(const ModelSpec& model) { return !classifies(model) && model.dims.contains("decoder_seq"); }

bool predicts_next_token(const ModelSpec& model) {
  return !classifies(model) && !reads_clicks(model) && !predicts_masked_tokens(model) && !predicts_masked_spans(model);
}

}  // namespace tessera::model
