// A Hugging Face config.json as a `model:` section. Keys that say nothing about shapes or work (ids of tokens, versions, caches)
// are passed over; those that change the computation in a way that no section can say are refused.
#include "model/hugging_face.hpp"

#include <algorithm>
#include <charconv>

#include "base/log.hpp"
#include "model/families.hpp"
#include "model/yaml_path.hpp"

namespace tessera::model {
namespace {

std::filesystem::path config_of(const ConfigNode& node) {
  const std::filesystem::path path = path_of(node);
  std::error_code ignored;  // a name that no file can have is a file that does not exist
  return std::filesystem::is_directory(path, ignored) ? path / "config.json" : path;
}

// The fewest digits that read back as the same number.
std::string shortest(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

class Import {
 public:
  Import(ConfigNode config, ImportFor use, std::int64_t longest) : config_(std::move(config)), use_(use), longest_(longest) {}

  bool is_computed() const { return use_ == ImportFor::computing; }
  std::int64_t longest() const { return longest_; }

  std::optional<ConfigNode> find(const char* key) const {
    auto found = config_.find(key);
    return found && !found->is_null() ? found : std::nullopt;
  }
  ConfigNode at(const char* key) const {
    if (auto found = find(key)) return *found;
    const auto guess = nearest(key, config_.keys());
    throw config_.error(text("this config.json has no ", key), "a positive number",
                        guess && *guess != key ? "did you mean '" + *guess + "'?" : "");
  }
  std::int64_t count(const char* key) const { return bounded(at(key), 1); }
  std::int64_t count(const char* key, std::int64_t fallback) const {
    const auto found = find(key);
    return found ? bounded(*found, 0) : fallback;
  }
  double real(const char* key, double fallback) const {
    const auto found = find(key);
    return found ? found->as_double() : fallback;
  }
  bool flag(const char* key, bool fallback) const {
    const auto found = find(key);
    return found ? found->as_bool() : fallback;
  }
  void refuse_when(const char* key, bool fallback, const char* why) const {
    if (flag(key, fallback)) throw config_.at(key).error(why, text(key, ": false"));
  }
  void refuse_unless(const char* key, const char* why) const {
    if (!flag(key, true)) throw config_.at(key).error(why, text(key, ": true"));
  }
  const ConfigNode& config() const { return config_; }

  template <typename Value>
  Import& write(const char* key, const Value& value) {
    out_ << (first_ ? "{" : ", ") << key << ": " << value;
    first_ = false;
    return *this;
  }
  Import& write(const char* key, bool value) { return write(key, value ? "true" : "false"); }
  Import& write(const char* key, double value) { return write(key, shortest(value)); }
  std::string yaml() const { return out_.str() + "}"; }

 private:
  ConfigNode config_;
  ImportFor use_;
  std::int64_t longest_;
  std::ostringstream out_;
  bool first_ = true;
};

void refuse_partial_rotation(const ConfigNode& in) {
  if (const auto part = in.find("partial_rotary_factor"); part && !part->is_null() && part->as_double() != 1.0)
    throw part->error("the rotary embedding turns only a part of each head", "1.0");
}

// What a file leaves out or says as null transformers infers as written here.
void write_yarn(Import& to, const ConfigNode& scaling) {
  const auto said = [&](const char* key) {
    const auto found = scaling.find(key);
    return found && !found->is_null() ? std::optional(found->as_double()) : std::nullopt;
  };
  const double longest = static_cast<double>(to.count("max_position_embeddings", 2048));
  const double original = said("original_max_position_embeddings").value_or(longest);
  std::string keys = text("{rope_type: yarn, factor: ", shortest(said("factor").value_or(longest / original)),
                          ", original_max_position_embeddings: ", static_cast<std::int64_t>(original));
  for (const char* key : {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"})
    if (const auto value = said(key)) keys += text(", ", key, ": ", shortest(*value));
  if (!scaling.get("truncate", true)) keys += ", truncate: false";
  to.write("rope_scaling", keys + "}");
}

// Older files have rope_theta and rope_scaling, newer ones rope_parameters.
void write_rotary(Import& to, double fallback) {
  double theta = to.real("rope_theta", fallback);
  std::optional<ConfigNode> scaling;
  std::optional<ConfigNode> kind;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = to.find(key);
    if (!rope) continue;
    theta = rope->get("rope_theta", theta);
    if (to.is_computed()) refuse_partial_rotation(*rope);
    for (const char* name : {"rope_type", "type"})
      if (const auto type = rope->find(name); type && type->as_string() != "default") {
        scaling = rope;
        kind = type;
      }
  }
  to.write("rope_theta", theta);
  if (!scaling) return;
  if (kind->as_string() == "llama3") {
    to.write("rope_scaling", text("{rope_type: llama3, factor: ", shortest(scaling->at("factor").as_double()),
                                  ", low_freq_factor: ", shortest(scaling->get("low_freq_factor", 1.0)), ", high_freq_factor: ",
                                  shortest(scaling->get("high_freq_factor", 4.0)), ", original_max_position_embeddings: ",
                                  scaling->get("original_max_position_embeddings", to.count("max_position_embeddings", 2048)), "}"));
    return;
  }
  if (kind->as_string() == "yarn") return write_yarn(to, *scaling);
  if (to.is_computed())
    throw kind->error("rotary positions scaled by '" + kind->as_string() + "' are not computed here", "default, llama3 or yarn");
  log::warning(text(kind->where().file, ": the rotary embedding's scaling (", kind->as_string(),
                    ") is left out; plans do not depend on it, but what is trained does"));
}

constexpr const char* kReadableWeights = "take weights in f32, f16 or bf16, or in FP8 with a scale for each block";

// Weights in FP8 are read as DeepSeek publishes them: a scale for each block of a matrix. Activations are not quantized here, so that only
// scales of them that are stored would be lost.
void check_quantization(const ConfigNode& quantized) {
  const auto require = [&](const char* key, const char* wanted, bool may_lack, const char* problem) {
    const auto said = quantized.find(key);
    const bool lacks = !said || said->is_null();
    if (lacks ? may_lack : said->is_scalar() && said->as_string() == wanted) return;
    throw(lacks ? quantized : *said).error(problem, text(key, ": ", wanted), kReadableWeights);
  };
  require("quant_method", "fp8", false, "its weights are quantized in another way than FP8");
  require("fmt", "e4m3", true, "its weights are in another format of FP8");
  require("activation_scheme", "dynamic", true, "its activations are quantized with scales that are stored");
  const auto block = quantized.find("weight_block_size");
  const bool has_blocks = block && block->is_sequence();
  if (has_blocks && block->size() == 2 && (*block)[0].as_int() == kFp8Block && (*block)[1].as_int() == kFp8Block) return;
  throw(block ? *block : quantized)
      .error(has_blocks ? "its scales are of blocks of another size" : "its weights do not have a scale for each block",
             text("weight_block_size: [", kFp8Block, ", ", kFp8Block, "]"), kReadableWeights);
}

// What neither a section says nor shapes depend on, but results do.
void check_weights(const Import& from) {
  if (const auto quantized = from.find("quantization_config")) check_quantization(*quantized);
}

void check_activation(const Import& from, const char* computed) {
  if (const auto activation = from.find("hidden_act"); activation && activation->as_string() != computed)
    throw activation->error("hidden_act is " + activation->as_string(), computed);
}

// Shares of attention are dropped here as all else is.
void warn_of_dropout(const Import& from, double all, std::initializer_list<const char*> others) {
  for (const char* key : others)
    if (from.real(key, 0.1) != all)
      log::warning(text(key, " is not applied when this model is trained further; what it is about is dropped with ", shortest(all),
                        ", as all else is"));
}

void check_decoder(const Import& from) {
  check_weights(from);
  for (const char* key : {"attention_bias", "mlp_bias", "use_bias"})
    from.refuse_when(key, false, "its linear maps have biases, beside those of queries, keys and values that Qwen2 has");
  check_activation(from, "silu");
  refuse_partial_rotation(from.config());
  if (from.real("attention_dropout", 0) != 0) log::warning("attention_dropout is not applied when this model is trained further");
}

void check_bert(const Import& from) {
  check_weights(from);
  check_activation(from, "gelu");
  from.refuse_when("is_decoder", false, "its attention is causal");
  from.refuse_unless("tie_word_embeddings", "its projection to the vocabulary is not the table of its embedding");
  if (const auto kind = from.find("position_embedding_type"); kind && kind->as_string() != "absolute")
    throw kind->error("position_embedding_type is " + kind->as_string(), "absolute");
  warn_of_dropout(from, from.real("hidden_dropout_prob", 0.1), {"attention_probs_dropout_prob"});
}

void check_gpt2(const Import& from) {
  check_weights(from);
  if (const auto kind = from.find("activation_function");
      kind && kind->as_string() != "gelu_new" && kind->as_string() != "gelu_pytorch_tanh")
    throw kind->error("activation_function is " + kind->as_string(), "gelu_new");
  from.refuse_unless("scale_attn_weights", "its attention is not scaled");
  from.refuse_when("scale_attn_by_inverse_layer_idx", false, "each of its layers scales attention in its own way");
  from.refuse_when("add_cross_attention", false, "its layers look at an encoder");
  warn_of_dropout(from, from.real("resid_pdrop", 0.1), {"embd_pdrop", "attn_pdrop"});
}

void check_t5(const Import& from) {
  check_weights(from);
  if (const auto projection = from.find("feed_forward_proj"))
    if (const std::string kind = projection->as_string(); kind != "relu" && kind != "gated-gelu")
      throw projection->error("feed_forward_proj is " + kind, "relu or gated-gelu");
  // transformers 5 says so beside tie_word_embeddings.
  const bool tied = from.flag("tie_word_embeddings", true);
  if (from.flag("scale_decoder_outputs", tied) != tied)
    throw from.config()
        .at("scale_decoder_outputs")
        .error("the head's input is scaled where the table of the embedding is the head's, too, and only there",
               text("scale_decoder_outputs: ", tied ? "true" : "false"), "T5 v1.1 has tie_word_embeddings: false and a lm_head.weight");
}

void write_llama_shape(Import& to, double rope_theta, double norm_eps) {
  const std::int64_t heads = to.count("num_attention_heads");
  to.write("hidden", to.count("hidden_size")).write("layers", to.count("num_hidden_layers")).write("heads", heads);
  to.write("vocab", to.count("vocab_size"))
      .write("seq", std::min(to.longest(), to.count("max_position_embeddings", 2048)))
      .write("tied", to.flag("tie_word_embeddings", false));
  write_rotary(to, rope_theta);
  to.write("norm_eps", to.real("rms_norm_eps", norm_eps));
}

void write_grouped_attention(Import& to, std::int64_t kv_heads, std::int64_t head_dim) {
  to.write("kv_heads", to.count("num_key_value_heads", kv_heads));
  const std::int64_t said = to.count("head_dim", head_dim);
  if (said > 0) to.write("head_dim", said);
}

constexpr std::int64_t kWindow = 4096;  // transformers' default

// A null is no window; `fallback` stands for a missing key.
std::optional<std::int64_t> window_of(const Import& from, std::optional<std::int64_t> fallback) {
  if (!from.config().has("sliding_window")) return fallback;
  const auto window = from.find("sliding_window");
  return window ? std::optional(bounded(*window, 1)) : std::nullopt;
}

void write_window(Import& to, std::optional<std::int64_t> fallback) {
  if (const auto window = window_of(to, fallback)) to.write("window", *window);
}

// Throws where some layers look back through a window and others do not.
void write_qwen_window(Import& to) {
  if (!to.flag("use_sliding_window", false) || !window_of(to, kWindow)) return;
  const std::int64_t layers = to.count("num_hidden_layers");
  std::int64_t sliding = std::max<std::int64_t>(0, layers - to.count("max_window_layers", 28));
  const auto types = to.find("layer_types");
  if (types) {
    sliding = 0;
    for (const ConfigNode& type : types->items()) sliding += type.as_choice({"full_attention", "sliding_attention"}) == "sliding_attention";
  }
  if (sliding == 0) return;
  if (sliding != layers)
    throw(types ? *types : to.config().at("use_sliding_window"))
        .error(text(sliding, " of ", layers, " layers look back through a window, the others over the whole sequence"),
               "one kind of attention in all layers");
  write_window(to, kWindow);
}

std::string llama(Import from) {
  from.refuse_when("attention_bias", false, "the attention's maps have biases");
  from.refuse_when("mlp_bias", false, "the feed-forward network's maps have biases");
  from.write("arch", "llama").write("ffn", from.count("intermediate_size"));
  write_llama_shape(from, 10000, 1e-6);
  write_grouped_attention(from, from.count("num_attention_heads"), 0);
  return from.yaml();
}

std::string mistral(Import from) {
  from.write("arch", "llama").write("ffn", from.count("intermediate_size"));
  write_llama_shape(from, 10000, 1e-6);
  write_grouped_attention(from, 8, 0);
  write_window(from, kWindow);
  return from.yaml();
}

std::string qwen2(Import from) {
  from.write("arch", "llama").write("ffn", from.count("intermediate_size")).write("qkv_bias", true);
  write_llama_shape(from, 10000, 1e-6);
  write_grouped_attention(from, 32, 0);
  write_qwen_window(from);
  return from.yaml();
}

std::string qwen3(Import from) {
  from.refuse_when("attention_bias", false, "the attention's maps have biases");
  from.write("arch", "llama").write("ffn", from.count("intermediate_size")).write("qk_norm", true);
  write_llama_shape(from, 10000, 1e-6);
  write_grouped_attention(from, 32, 128);
  write_qwen_window(from);
  return from.yaml();
}

std::string mixtral(Import from) {
  from.write("arch", "mixtral").write("ffn", from.count("intermediate_size"));
  write_llama_shape(from, 1e6, 1e-5);
  write_grouped_attention(from, 8, 0);
  write_window(from, {});
  from.write("experts", from.count("num_local_experts", 8)).write("experts_per_token", from.count("num_experts_per_tok", 2));
  return from.yaml();
}

// Layers without experts must be the first ones.
std::int64_t leading_dense_layers(const Import& from) {
  if (from.count("decoder_sparse_step", 1) != 1)
    throw from.config().at("decoder_sparse_step").error("layers with and without experts alternate", "1");
  const auto list = from.find("mlp_only_layers");
  if (!list) return 0;
  std::int64_t next = 0;
  for (const ConfigNode& layer : list->items())
    if (layer.as_int() != next++) throw layer.error("a layer without experts stands behind one with experts", text(next - 1));
  return next;
}

void write_qwen_experts(Import& to, std::int64_t experts, std::int64_t each) {
  const std::int64_t dense = leading_dense_layers(to);
  if (dense > 0) to.write("dense_layers", dense).write("ffn", to.count("intermediate_size"));
  // transformers 5 writes num_local_experts.
  to.write("experts", to.count("num_experts", to.count("num_local_experts", experts)))
      .write("experts_per_token", to.count("num_experts_per_tok", each));
  to.write("expert_ffn", to.count("moe_intermediate_size"));
  if (!to.flag("norm_topk_prob", false)) to.write("norm_topk", false);
}

std::string qwen2_moe(Import from) {
  from.write("arch", "qwen_moe").write("qkv_bias", from.flag("qkv_bias", true));
  write_llama_shape(from, 10000, 1e-6);
  write_grouped_attention(from, 16, 0);
  write_qwen_experts(from, 60, 4);
  from.write("shared_ffn", from.count("shared_expert_intermediate_size"));
  return from.yaml();
}

std::string qwen3_moe(Import from) {
  from.refuse_when("attention_bias", false, "the attention's maps have biases");
  from.write("arch", "qwen_moe").write("qk_norm", true);
  write_llama_shape(from, 10000, 1e-6);
  write_grouped_attention(from, 4, from.count("hidden_size") / from.count("num_attention_heads"));
  write_qwen_experts(from, 128, 8);
  return from.yaml();
}

// What both versions say.
Import deepseek(Import from) {
  from.refuse_when("attention_bias", false, "the attention's maps have biases");
  if (from.count("moe_layer_freq", 1) != 1)
    throw from.config().at("moe_layer_freq").error("layers with and without experts alternate", "1");
  const std::int64_t width = from.count("moe_intermediate_size");
  from.write("arch", "deepseek");
  write_llama_shape(from, 10000, 1e-6);
  from.write("q_lora", from.count("q_lora_rank", 0)).write("kv_lora", from.count("kv_lora_rank"));
  from.write("nope_dim", from.count("qk_nope_head_dim"))
      .write("rope_dim", from.count("qk_rope_head_dim"))
      .write("v_dim", from.count("v_head_dim"));
  const std::int64_t dense = from.count("first_k_dense_replace", 0);
  if (dense > 0) from.write("dense_layers", dense).write("ffn", from.count("intermediate_size"));
  from.write("experts", from.count("n_routed_experts"))
      .write("experts_per_token", from.count("num_experts_per_tok"))
      .write("expert_ffn", width);
  if (const std::int64_t shared = from.count("n_shared_experts", 0); shared > 0) from.write("shared_ffn", shared * width);
  return from;
}

void write_groups(Import& to) {
  const std::int64_t groups = to.count("n_group", 1);
  if (groups > 1) to.write("expert_groups", groups).write("top_groups", to.count("topk_group"));
}

std::string deepseek_v2(Import from) {
  Import to = deepseek(std::move(from));
  to.write("norm_topk", false).write("routed_scale", to.real("routed_scaling_factor", 1));
  const auto method = to.find("topk_method");
  if (method && method->as_choice({"greedy", "group_limited_greedy"}) != "greedy") write_groups(to);
  return to.yaml();
}

std::string deepseek_v3(Import from) {
  from.refuse_unless("rope_interleave", "the halves of rotated dimensions stand apart");
  Import to = deepseek(std::move(from));
  to.write("scoring", "sigmoid").write("score_bias", true).write("norm_topk", to.flag("norm_topk_prob", true));
  to.write("routed_scale", to.real("routed_scaling_factor", 2.5));
  write_groups(to);
  return to.yaml();
}

std::string gpt2(Import from) {
  from.write("arch", "gpt")
      .write("hidden", from.count("n_embd"))
      .write("layers", from.count("n_layer"))
      .write("heads", from.count("n_head"));
  const std::int64_t positions = from.count("n_positions");
  from.write("vocab", from.count("vocab_size")).write("seq", std::min(from.longest(), positions)).write("max_positions", positions);
  from.write("tied", from.flag("tie_word_embeddings", true)).write("dropout", from.real("resid_pdrop", 0.1));
  from.write("norm_eps", from.real("layer_norm_epsilon", 1e-5));
  if (const std::int64_t inner = from.count("n_inner", 0); inner > 0) from.write("ffn", inner);
  return from.yaml();
}

std::int64_t labels_of(const Import& from) {
  if (const auto problem = from.find("problem_type"); problem && problem->as_string() != "single_label_classification")
    throw problem->error("its head is for " + problem->as_string(), "single_label_classification");
  if (const auto names = from.find("id2label")) return std::ssize(names->keys());
  return from.count("num_labels", 2);
}

std::string bert(Import from) {
  const std::int64_t positions = from.count("max_position_embeddings", 512);
  from.write("arch", "bert").write("hidden", from.count("hidden_size")).write("layers", from.count("num_hidden_layers"));
  from.write("heads", from.count("num_attention_heads"))
      .write("ffn", from.count("intermediate_size"))
      .write("vocab", from.count("vocab_size"));
  from.write("seq", std::min(from.longest(), positions))
      .write("max_positions", positions)
      .write("token_types", from.count("type_vocab_size", 2));
  from.write("tied", from.flag("tie_word_embeddings", true)).write("dropout", from.real("hidden_dropout_prob", 0.1));
  from.write("norm_eps", from.real("layer_norm_eps", 1e-12));
  const auto classes = from.find("architectures");
  for (const ConfigNode& name : classes ? classes->items() : std::vector<ConfigNode>{}) {
    if (name.as_string() == "BertForSequenceClassification") from.write("head", "classification").write("classes", labels_of(from));
    // Weights of the second task of pretraining are left in the folder.
    if (name.as_string() == "BertForPreTraining" && !from.is_computed()) from.write("head", "pretraining");
  }
  return from.yaml();
}

std::string t5(Import from) {
  const std::int64_t layers = from.count("num_layers");
  const auto projection = from.find("feed_forward_proj");
  from.write("arch", "t5").write("hidden", from.count("d_model")).write("ffn", from.count("d_ff")).write("head_dim", from.count("d_kv"));
  from.write("layers", layers).write("decoder_layers", from.count("num_decoder_layers", layers)).write("heads", from.count("num_heads"));
  from.write("vocab", from.count("vocab_size"))
      .write("seq", std::min(from.longest(), from.count("n_positions", 512)))
      .write("buckets", from.count("relative_attention_num_buckets", 32))
      .write("max_distance", from.count("relative_attention_max_distance", 128));
  from.write("gated", projection && projection->as_string().starts_with("gated-")).write("dropout", from.real("dropout_rate", 0.1));
  from.write("tied", from.flag("tie_word_embeddings", true)).write("norm_eps", from.real("layer_norm_epsilon", 1e-6));
  return from.yaml();
}

struct Family {
  const char* type;
  std::string (*yaml)(Import);
  void (*check)(const Import&);  // throws where nn/ would compute it otherwise
};
constexpr Family kFamilies[] = {{"llama", llama, check_decoder},
                                {"mistral", mistral, check_decoder},
                                {"qwen2", qwen2, check_decoder},
                                {"qwen3", qwen3, check_decoder},
                                {"mixtral", mixtral, check_decoder},
                                {"qwen2_moe", qwen2_moe, check_decoder},
                                {"qwen3_moe", qwen3_moe, check_decoder},
                                {"deepseek_v2", deepseek_v2, check_decoder},
                                {"deepseek_v3", deepseek_v3, check_decoder},
                                {"gpt2", gpt2, check_gpt2},
                                {"bert", bert, check_bert},
                                {"t5", t5, check_t5}};

}  // namespace

std::string hugging_face_yaml(const std::filesystem::path& config_json, ImportFor use, std::int64_t longest) {
  const ConfigNode config = ConfigNode::load(config_json);
  if (!config.has("model_type")) throw config.error("this is no config.json of a Hugging Face model: it has no model_type");
  const ConfigNode type = config.at("model_type");
  const bool computing = use == ImportFor::computing;
  std::vector<std::string> known;
  for (const Family& family : kFamilies) {
    known.emplace_back(family.type);
    if (type.as_string() != family.type) continue;
    Import from(config, use, longest);
    if (computing) family.check(from);
    return family.yaml(std::move(from));
  }
  std::string list;
  for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
  const auto guess = nearest(type.as_string(), known);
  throw type.error("models of type '" + type.as_string() + "' cannot be imported", "one of: " + list,
                   guess ? "did you mean '" + *guess + "'?" : "");
}

HuggingFaceWeights hugging_face_weights(const std::filesystem::path& config_json) {
  const Import from(ConfigNode::load(config_json), ImportFor::computing, 0);
  HuggingFaceWeights out;
  out.fp8 = from.find("quantization_config").has_value();
  out.further_layers = from.count("num_nextn_predict_layers", 0);
  if (out.further_layers > 0) out.layers = from.count("num_hidden_layers");
  return out;
}

std::string hugging_face_yaml(const ConfigNode& path) { return hugging_face_yaml(config_of(path), ImportFor::planning); }

}  // namespace tessera::model
