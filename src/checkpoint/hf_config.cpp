#include "checkpoint/hf_config.hpp"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "model/forms.hpp"

namespace tessera::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDeepest = 100;

Json parse_file(const std::filesystem::path& path) {
  const auto shallow = [&](int depth, Json::parse_event_t, Json&) {
    // What is refused is shown, and nlohmann shows a value by recursion.
    if (depth > kDeepest) throw Error(ErrorCode::corrupt, text("nested more than ", kDeepest, " deep"), {path.string(), 0, 0, -1, {}});
    return true;
  };
  try {
    Json json = Json::parse(read_whole(path), shallow);
    if (json.is_object()) return json;
    throw Error(ErrorCode::corrupt, "not a JSON object", {path.string(), 0, 0, -1, {}});
  } catch (const nlohmann::json::exception& problem) {
    throw Error(ErrorCode::corrupt, text("not valid JSON: ", problem.what()), {path.string(), 0, 0, -1, {}});
  }
}

// "</s>" or {"content": "</s>", ...}.
std::string token_text(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return {};
  if (found->is_object()) return token_text(*found, "content");
  return found->is_string() ? found->get<std::string>() : std::string();
}

void name_ids(const Json& tokenizer, SpecialTokens& tokens) {
  const auto added = tokenizer.find("added_tokens");
  const auto find = [&](std::string& wanted, std::initializer_list<const char*> known) -> std::int64_t {
    if (added == tokenizer.end() || !added->is_array()) return -1;
    std::vector<std::string> names(known.begin(), known.end());
    if (!wanted.empty()) names = {wanted};
    for (const std::string& name : names)
      for (const Json& token : *added)
        if (token.is_object() && token_text(token, "content") == name && token.contains("id") && token.at("id").is_number_integer()) {
          wanted = name;
          return token.at("id").get<std::int64_t>();
        }
    return -1;
  };
  tokens.eos = find(tokens.eos_token, {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"});
  tokens.bos = find(tokens.bos_token, {"<|begin_of_text|>", "<s>", "<bos>", "<|endoftext|>"});
}

}  // namespace

SpecialTokens special_tokens(const std::filesystem::path& tokenizer) {
  SpecialTokens tokens;
  if (tokenizer.extension() != ".json") return tokens;
  const auto beside = tokenizer.parent_path() / "tokenizer_config.json";
  if (std::filesystem::exists(beside)) {
    const Json config = parse_file(beside);
    tokens.bos_token = token_text(config, "bos_token");
    tokens.eos_token = token_text(config, "eos_token");
  }
  name_ids(parse_file(tokenizer), tokens);
  return tokens;
}

namespace {

// model_type and the class of transformers that computes what the model does.
std::pair<const char*, const char*> class_of(const model::ModelSpec& model) {
  const bool biased = model.dims.contains("qkv_bias");
  const bool normalizes_heads = model.dims.contains("qk_norm");
  const auto refuse = [](const std::string& what, const std::string& expected) {
    throw Error(ErrorCode::invalid_config, "no model of transformers has " + what + ": this one cannot be exported", {}, expected);
  };
  if (model.arch == "mixtral") {
    if (biased || normalizes_heads)
      refuse("Mixtral's experts and biases of queries, keys and values or norms of their heads",
             "no qkv_bias and no qk_norm, or arch qwen_moe");
    return {"mixtral", "MixtralForCausalLM"};
  }
  if (model.arch == "qwen_moe") {
    const bool shared = model.repeats[model.repeats.size() - 2].block.dims.contains("shared_ffn");
    if (shared && biased && !normalizes_heads) return {"qwen2_moe", "Qwen2MoeForCausalLM"};
    if (!shared && !biased && normalizes_heads) return {"qwen3_moe", "Qwen3MoeForCausalLM"};
    refuse("such a mixture of experts", "shared_ffn and qkv_bias (Qwen2), or qk_norm alone (Qwen3)");
  }
  if (model.arch == "deepseek") {
    const model::BlockSpec& last = model.repeats[model.repeats.size() - 2].block;
    const auto has = [&](const char* key) { return last.dims.contains(key); };
    if (!has("shared_ffn") || last.dim("shared_ffn") % last.dim("expert_ffn") != 0)
      refuse("such shared experts", "shared_ffn, a multiple of expert_ffn");
    if (has("sigmoid_scores") && has("score_bias")) return {"deepseek_v3", "DeepseekV3ForCausalLM"};
    if (!has("sigmoid_scores") && !has("score_bias") && has("norm_topk")) return {"deepseek_v2", "DeepseekV2ForCausalLM"};
    refuse("such a router", "scoring: sigmoid with score_bias (DeepSeek-V3), or scoring: softmax with norm_topk: false (DeepSeek-V2)");
  }
  if (biased && normalizes_heads)
    refuse("both biases of queries, keys and values and norms of their heads", "qkv_bias (Qwen2) or qk_norm (Qwen3)");
  if (normalizes_heads) return {"qwen3", "Qwen3ForCausalLM"};
  if (biased) return {"qwen2", "Qwen2ForCausalLM"};
  if (model.dims.contains("window")) return {"mistral", "MistralForCausalLM"};
  return {"llama", "LlamaForCausalLM"};
}

// Latent attention, and the experts as these files call them.
void add_deepseek(Json& json, const model::ModelSpec& model) {
  const model::BlockSpec& last = model.repeats[model.repeats.size() - 2].block;
  const auto option = [&](const char* key, std::int64_t otherwise) { return last.dims.contains(key) ? last.dim(key) : otherwise; };
  const std::int64_t groups = option("expert_groups", 1);
  json["q_lora_rank"] = model.dim("q_lora") > 0 ? Json(model.dim("q_lora")) : Json();
  json["kv_lora_rank"] = model.dim("kv_lora");
  json["qk_nope_head_dim"] = model.dim("nope_dim");
  json["qk_rope_head_dim"] = json["head_dim"] = model.dim("rope_dim");
  json["v_head_dim"] = model.dim("v_dim");
  json["n_routed_experts"] = last.dim("experts");
  json["n_shared_experts"] = last.dim("shared_ffn") / last.dim("expert_ffn");
  json["num_experts_per_tok"] = last.dim("experts_per_token");
  json["moe_intermediate_size"] = last.dim("expert_ffn");
  json["norm_topk_prob"] = !last.dims.contains("norm_topk");
  json["routed_scaling_factor"] = last.dims.contains("routed_scale") ? last.dims.at("routed_scale") : 1.0;
  json["topk_method"] = groups > 1 ? "group_limited_greedy" : "greedy";
  json["n_group"] = groups;
  json["topk_group"] = option("top_groups", 1);
  json["num_nextn_predict_layers"] = 0;
  const model::Repeat& first = model.repeats[1];
  const bool dense = !first.block.dims.contains("experts");
  json["first_k_dense_replace"] = dense ? first.count : 0;
  if (dense) json["intermediate_size"] = first.block.dim("ffn");
}

void add_experts(Json& json, const model::ModelSpec& model) {
  if (model.arch == "deepseek") return add_deepseek(json, model);
  if (!model.dims.contains("experts")) return;
  json["num_experts_per_tok"] = model.dim("experts_per_token");
  json["router_aux_loss_coef"] = model.dims.contains("balance_loss") ? model.dims.at("balance_loss") : 0.0;
  // What each layer is as wide as, which is no dimension of the whole model.
  const model::BlockSpec& last = model.repeats[model.repeats.size() - 2].block;
  json["num_local_experts"] = model.dim("experts");
  if (model.arch == "mixtral") {
    json["intermediate_size"] = last.dim("expert_ffn");
    return;
  }
  json["num_experts"] = model.dim("experts");
  json["moe_intermediate_size"] = last.dim("expert_ffn");
  json["norm_topk_prob"] = !last.dims.contains("norm_topk");
  if (last.dims.contains("shared_ffn")) json["shared_expert_intermediate_size"] = last.dim("shared_ffn");
  json["decoder_sparse_step"] = 1;
  if (model.dims.contains("qkv_bias")) json["qkv_bias"] = true;
  json["mlp_only_layers"] = Json::array();
  const model::Repeat& first = model.repeats[1];
  if (first.block.dims.contains("experts")) return;
  json["intermediate_size"] = first.block.dim("ffn");
  for (int layer = 0; layer < first.count; ++layer) json["mlp_only_layers"].push_back(layer);
}

std::string bert_config_json(const model::ModelSpec& model, const char* type) {
  const bool classifies = model::classifies_text(model);
  if (!classifies && !model.tied_embeddings)
    throw Error(ErrorCode::invalid_config,
                "transformers' BERT has one bias for two where the projection is not tied: this one cannot be exported", {}, "tied: true");
  const double dropout = model.dims.contains("dropout") ? model.dims.at("dropout") : 0.0;
  Json json = {{"architectures", {classifies ? "BertForSequenceClassification" : "BertForMaskedLM"}},
               {"model_type", "bert"},
               {"attention_probs_dropout_prob", dropout},
               {"hidden_act", "gelu"},
               {"hidden_dropout_prob", dropout},
               {"hidden_size", model.dim("hidden")},
               {"initializer_range", 0.02},
               {"intermediate_size", model.dim("ffn")},
               {"layer_norm_eps", model.dims.at("norm_eps")},
               {"max_position_embeddings", model.dim("positions")},
               {"num_attention_heads", model.dim("heads")},
               {"num_hidden_layers", model.dim("layers")},
               {"pad_token_id", nullptr},
               {"position_embedding_type", "absolute"},
               {"tie_word_embeddings", true},
               {"torch_dtype", type},
               {"type_vocab_size", model.dim("token_types")},
               {"vocab_size", model.dim("vocab")},
               {kExportMark, model.fingerprint()}};
  for (std::int64_t label = 0; classifies && label < model.dim("classes"); ++label) {
    json["id2label"][text(label)] = text("LABEL_", label);
    json["label2id"][text("LABEL_", label)] = label;
  }
  if (classifies) json["problem_type"] = "single_label_classification";
  return json.dump(2) + "\n";
}

std::string gpt2_config_json(const model::ModelSpec& model, const SpecialTokens& tokens, const char* type) {
  const auto has = [&](const char* key) { return model.dims.contains(key) && model.dims.at(key) != 0; };
  const std::pair<bool, const char*> others[] = {
      {!has("positions"), "positions: learned"},
      {!has("biases"), "biases: true"},
      {has("gated"), "gated: false"},
      {has("embedding_norm"), "embedding_norm: false"},
      {model.dim("kv_heads") != model.dim("heads"), "as many kv_heads as heads"},
      {model.dim("heads") * model.dim("head_dim") != model.dim("hidden"), "heads of hidden / heads"}};
  for (const auto& [differs, expected] : others)
    if (differs)
      throw Error(ErrorCode::invalid_config, "transformers' GPT-2 computes otherwise: this one cannot be exported", {}, expected);
  const double dropout = model.dims.contains("dropout") ? model.dims.at("dropout") : 0.0;
  Json json = {{"architectures", {"GPT2LMHeadModel"}},
               {"model_type", "gpt2"},
               {"activation_function", "gelu_new"},
               {"attn_pdrop", dropout},
               {"bos_token_id", nullptr},
               {"embd_pdrop", dropout},
               {"eos_token_id", nullptr},
               {"initializer_range", 0.02},
               {"layer_norm_epsilon", model.dims.at("norm_eps")},
               {"n_embd", model.dim("hidden")},
               {"n_head", model.dim("heads")},
               {"n_inner", model.dim("ffn")},
               {"n_layer", model.dim("layers")},
               {"n_positions", model.dim("positions")},
               {"resid_pdrop", dropout},
               {"tie_word_embeddings", model.tied_embeddings},
               {"torch_dtype", type},
               {"vocab_size", model.dim("vocab")},
               {kExportMark, model.fingerprint()}};
  if (tokens.bos >= 0) json["bos_token_id"] = tokens.bos;
  if (tokens.eos >= 0) json["eos_token_id"] = tokens.eos;
  return json.dump(2) + "\n";
}

// The decoder begins with padding, token 0 (data/spans.hpp).
std::string t5_config_json(const model::ModelSpec& model, const SpecialTokens& tokens, const char* type) {
  const Json json = {{"architectures", {"T5ForConditionalGeneration"}},
                     {"model_type", "t5"},
                     {"d_ff", model.dim("ffn")},
                     {"d_kv", model.dim("head_dim")},
                     {"d_model", model.dim("hidden")},
                     {"decoder_start_token_id", 0},
                     {"dropout_rate", model.dims.contains("dropout") ? model.dims.at("dropout") : 0.0},
                     {"eos_token_id", tokens.eos >= 0 ? Json(tokens.eos) : Json()},
                     {"feed_forward_proj", model.dims.at("gated") != 0 ? "gated-gelu" : "relu"},
                     {"initializer_factor", 1.0},
                     {"is_encoder_decoder", true},
                     {"layer_norm_epsilon", model.dims.at("norm_eps")},
                     {"n_positions", model.dim("seq")},
                     {"num_decoder_layers", model.dim("decoder_layers")},
                     {"num_heads", model.dim("heads")},
                     {"num_layers", model.dim("layers")},
                     {"pad_token_id", 0},
                     {"relative_attention_max_distance", model.dim("max_distance")},
                     {"relative_attention_num_buckets", model.dim("buckets")},
                     {"tie_word_embeddings", model.tied_embeddings},
                     {"torch_dtype", type},
                     {"vocab_size", model.dim("vocab")},
                     {kExportMark, model.fingerprint()}};
  return json.dump(2) + "\n";
}

}  // namespace

std::string config_json(const model::ModelSpec& model, const SpecialTokens& tokens, ExportType type) {
  const char* const element = type == ExportType::bf16 ? "bfloat16" : "float32";
  if (model.arch == "bert") return bert_config_json(model, element);
  if (model.arch == "gpt") return gpt2_config_json(model, tokens, element);
  if (model.arch == "t5") return t5_config_json(model, tokens, element);
  const bool biased = model.dims.contains("qkv_bias");
  const bool normalizes_heads = model.dims.contains("qk_norm");
  const bool windowed = model.dims.contains("window");
  const auto [model_type, architecture] = class_of(model);
  const double theta = model.dims.at("rope_theta");
  Json rope = {{"rope_type", "default"}};
  if (model.dims.contains("rope_beta_fast")) {
    rope = {{"rope_type", "yarn"},
            {"factor", model.dims.at("rope_factor")},
            {"original_max_position_embeddings", model.dim("rope_original_seq")},
            {"beta_fast", model.dims.at("rope_beta_fast")},
            {"beta_slow", model.dims.at("rope_beta_slow")},
            {"attention_factor", model.dims.at("rope_amplitude")},
            {"truncate", model.dims.at("rope_whole_pairs") != 0}};
    if (model.dims.contains("rope_mscale_all_dim")) rope["mscale_all_dim"] = model.dims.at("rope_mscale_all_dim");
  } else if (model.dims.contains("rope_factor"))
    rope = {{"rope_type", "llama3"},
            {"factor", model.dims.at("rope_factor")},
            {"low_freq_factor", model.dims.at("rope_low_freq")},
            {"high_freq_factor", model.dims.at("rope_high_freq")},
            {"original_max_position_embeddings", model.dim("rope_original_seq")}};
  Json json = {{"architectures", {architecture}},
               {"model_type", model_type},
               {"attention_bias", false},
               {"attention_dropout", 0.0},
               {"bos_token_id", nullptr},
               {"eos_token_id", nullptr},
               {"pad_token_id", nullptr},
               {"head_dim", model.dim("head_dim")},
               {"hidden_act", "silu"},
               {"hidden_size", model.dim("hidden")},
               {"initializer_range", 0.02},
               {"intermediate_size", model.dim("ffn")},
               {"max_position_embeddings", model.dim("seq")},
               {"mlp_bias", false},
               {"num_attention_heads", model.dim("heads")},
               {"num_hidden_layers", model.dim("layers")},
               {"num_key_value_heads", model.dim("kv_heads")},
               {"pretraining_tp", 1},
               {"rms_norm_eps", model.dims.at("norm_eps")},
               {"rope_theta", theta},
               {"rope_scaling", model.dims.contains("rope_factor") ? rope : Json()},
               {"tie_word_embeddings", model.tied_embeddings},
               {"torch_dtype", element},
               {"use_cache", true},
               {"vocab_size", model.dim("vocab")},
               {kExportMark, model.fingerprint()}};
  // rope_theta and rope_scaling for transformers before 5, rope_parameters from 5 on.
  json["rope_parameters"] = std::move(rope);
  json["rope_parameters"]["rope_theta"] = theta;
  json["sliding_window"] = windowed ? Json(model.dim("window")) : Json();
  if (windowed && (biased || normalizes_heads)) {
    json["use_sliding_window"] = true;
    json["max_window_layers"] = 0;
  }
  add_experts(json, model);
  if (tokens.bos >= 0) json["bos_token_id"] = tokens.bos;
  if (tokens.eos >= 0) json["eos_token_id"] = tokens.eos;
  return json.dump(2) + "\n";
}

std::string generation_config_json(const SpecialTokens& tokens) {
  Json json = {{"_from_model_config", true}, {"use_cache", true}};
  if (tokens.bos >= 0) json["bos_token_id"] = tokens.bos;
  if (tokens.eos >= 0) json["eos_token_id"] = tokens.eos;
  return json.dump(2) + "\n";
}

std::string tokenizer_config_json(const model::ModelSpec& model, const SpecialTokens& tokens, bool sentencepiece) {
  Json json = {{"tokenizer_class", sentencepiece ? "LlamaTokenizer" : "PreTrainedTokenizerFast"},
               {"model_max_length", model.dim("seq")},
               {"clean_up_tokenization_spaces", false}};
  if (sentencepiece) json["legacy"] = false;
  if (tokens.bos >= 0) json["bos_token"] = tokens.bos_token;
  if (tokens.eos >= 0) json["eos_token"] = tokens.eos_token;
  return json.dump(2) + "\n";
}

}  // namespace tessera::checkpoint
