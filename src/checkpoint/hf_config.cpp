#include "checkpoint/hf_config.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "base/log.hpp"

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

// Reads one config.json; every getter throws with the file and the key.
class Config {
 public:
  explicit Config(std::filesystem::path path) : path_(std::move(path)), json_(parse_file(path_)) {}

  [[noreturn]] void refuse(const std::string& what, const std::string& expected = {}) const {
    throw Error(ErrorCode::invalid_config, "this model cannot be imported: " + what, {path_.string(), 0, 0, -1, {}}, expected);
  }
  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  const Json& at(const char* key) const { return json_.at(key); }

  std::string string(const char* key, const std::string& fallback) const {
    return read<std::string>(json_, key, fallback, &Json::is_string);
  }
  bool boolean(const char* key, bool fallback) const { return read<bool>(json_, key, fallback, &Json::is_boolean); }
  double real(const Json& in, const char* key, double fallback) const { return read<double>(in, key, fallback, &Json::is_number); }
  double real(const char* key, double fallback) const { return real(json_, key, fallback); }
  std::int64_t integer(const char* key, std::optional<std::int64_t> fallback = std::nullopt) const {
    if (!has(key) && !fallback) refuse(text("its config.json has no ", key));
    const std::int64_t value = read<std::int64_t>(json_, key, fallback.value_or(0), &Json::is_number_integer);
    if (value <= 0) refuse(text(key, " is ", value), "a positive number");
    return value;
  }

 private:
  template <typename Value>
  Value read(const Json& in, const char* key, const Value& fallback, bool (Json::*is)() const noexcept) const {
    const auto found = in.find(key);
    if (found == in.end() || found->is_null()) return fallback;
    if (!((*found).*is)()) refuse(text(key, " is ", found->dump()), "a value of another type");
    return found->get<Value>();
  }

  std::filesystem::path path_;
  Json json_;
};

// The rotary base; older files have rope_theta and rope_scaling, newer ones rope_parameters.
double rope_theta(const Config& config) {
  double theta = config.real("rope_theta", 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!config.has(key)) continue;
    const Json& rope = config.at(key);
    if (!rope.is_object()) config.refuse(text(key, " is ", rope.dump()));
    for (const char* kind : {"rope_type", "type"})
      if (rope.contains(kind) && rope.at(kind) != "default")
        config.refuse(text("its rotary embedding is scaled (", key, ": ", rope.dump(), ")"), "rope_type: default");
    if (config.real(rope, "partial_rotary_factor", 1.0) != 1.0)
      config.refuse("it rotates only a part of each head (partial_rotary_factor)");
    theta = config.real(rope, "rope_theta", theta);
  }
  return theta;
}

void check_features(const Config& config, const std::string& type, std::int64_t seq) {
  if (config.has("quantization_config")) config.refuse("its weights are quantized (quantization_config)", "weights in f32, f16 or bf16");
  for (const char* key : {"attention_bias", "mlp_bias", "use_bias"})
    if (config.boolean(key, false)) config.refuse(text("its linear maps have biases (", key, ")"));
  if (const std::string activation = config.string("hidden_act", "silu"); activation != "silu")
    config.refuse("hidden_act is " + activation, "silu");
  if (config.real("partial_rotary_factor", 1.0) != 1.0) config.refuse("it rotates only a part of each head (partial_rotary_factor)");
  const bool windowed = type == "qwen2" ? config.boolean("use_sliding_window", false) : true;
  if (windowed && config.has("sliding_window") && config.integer("sliding_window") < seq)
    config.refuse(
        text("its attention looks back ", config.integer("sliding_window"), " tokens only (sliding_window), fewer than its ", seq),
        text("a sequence length of at most ", config.integer("sliding_window")));
  if (config.has("layer_types"))
    for (const Json& layer : config.at("layer_types"))
      if (layer != "full_attention" && !(type == "mistral" && layer == "sliding_attention"))
        config.refuse("it has layers of type " + layer.dump(), "full_attention");
  if (config.real("attention_dropout", 0.0) != 0.0) log::warning("attention_dropout is not applied when this model is trained further");
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

std::string config_json(const model::ModelSpec& model, const SpecialTokens& tokens, ExportType type) {
  const double theta = model.dims.at("rope_theta");
  // rope_theta for transformers before 5, rope_parameters from 5 on.
  Json json = {{"architectures", {"LlamaForCausalLM"}},
               {"model_type", "llama"},
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
               {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", theta}}},
               {"tie_word_embeddings", model.tied_embeddings},
               {"torch_dtype", type == ExportType::bf16 ? "bfloat16" : "float32"},
               {"use_cache", true},
               {"vocab_size", model.dim("vocab")},
               {kExportMark, model.fingerprint()}};
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

std::string model_yaml(const std::filesystem::path& config_file, std::int64_t longest) {
  if (!std::filesystem::exists(config_file))
    throw Error(ErrorCode::not_found, "there is no config.json", {config_file.parent_path().string(), 0, 0, -1, {}},
                "a folder that transformers' save_pretrained wrote");
  const Config config(config_file);
  const std::string type = config.string("model_type", "(none)");
  if (type != "llama" && type != "mistral" && type != "qwen2")
    config.refuse("model_type is " + type, "llama, or mistral or qwen2 that compute the same");
  const std::int64_t positions = config.integer("max_position_embeddings", 2048);
  const std::int64_t seq = std::min(positions, longest);
  check_features(config, type, seq);

  const std::int64_t hidden = config.integer("hidden_size");
  const std::int64_t heads = config.integer("num_attention_heads");
  // transformers' defaults, for keys that a file may leave out.
  const std::int64_t kv_heads = config.integer("num_key_value_heads", type == "mistral" ? 8 : type == "qwen2" ? 32 : heads);
  const Json numbers = {{"rope_theta", rope_theta(config)}, {"norm_eps", config.real("rms_norm_eps", 1e-6)}};
  return text("{arch: llama, hidden: ", hidden, ", layers: ", config.integer("num_hidden_layers"), ", heads: ", heads,
              ", kv_heads: ", kv_heads, ", head_dim: ", config.integer("head_dim", std::max<std::int64_t>(1, hidden / heads)),
              ", ffn: ", config.integer("intermediate_size"), ", seq: ", seq, ", vocab: ", config.integer("vocab_size"),
              ", tied: ", config.boolean("tie_word_embeddings", false) ? "true" : "false",
              ", rope_theta: ", numbers.at("rope_theta").dump(), ", norm_eps: ", numbers.at("norm_eps").dump(), "}");
}

}  // namespace tessera::checkpoint
