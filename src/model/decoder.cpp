// Llama (Touvron et al. 2023) and what descends from it (Mistral, Qwen): RMSNorm, rotary embedding, grouped-query or multi-head latent
// attention, SwiGLU, in the feed-forward network or in routed experts. Parameters are named as Hugging Face transformers names them.
#include <cmath>
#include <numeric>

#include "model/families.hpp"

namespace tessera::model {
namespace {

using Dims = std::map<std::string, double>;
using Parameters = std::vector<ParameterSpec>;

struct Family {
  const char* arch;
  bool sandwich;        // a norm after attention and feed-forward network too (Pangu Ultra, 2025)
  bool latent;          // multi-head latent attention (DeepSeek-V2, 2024)
  bool routed;          // experts
  bool own_expert_ffn;  // experts are not as wide as `ffn` says
};
constexpr Family kFamilies[] = {
    {"llama", false, false, false, false},  {"pangu", true, false, false, false},  {"mixtral", false, false, true, false},
    {"qwen_moe", false, false, true, true}, {"deepseek", false, true, true, true},
};

const Family& family_of(const std::string& arch) {
  for (const Family& family : kFamilies)
    if (arch == family.arch) return family;
  throw Error(ErrorCode::internal, "no family of decoders is called " + arch);
}

std::vector<std::string> keys_of(const Family& family) {
  std::vector<std::string> keys = {"hidden", "layers", "heads", "ffn", "seq", "vocab", "tied", "rope_theta", "norm_eps"};
  const auto add = [&](std::initializer_list<const char*> more) { keys.insert(keys.end(), more.begin(), more.end()); };
  if (family.latent)
    add({"q_lora", "kv_lora", "nope_dim", "rope_dim", "v_dim", "rope_scaling"});
  else
    add({"kv_heads", "head_dim", "qkv_bias", "qk_norm", "window", "rope_scaling"});
  if (family.routed) add({"experts", "experts_per_token", "balance_loss", "z_loss", "capacity"});
  if (family.own_expert_ffn) add({"expert_ffn", "shared_ffn", "dense_layers"});
  if (family.own_expert_ffn) keys.emplace_back("norm_topk");
  if (family.latent && family.routed) add({"scoring", "routed_scale", "expert_groups", "top_groups", "score_bias", "score_bias_rate"});
  return with_run_keys(std::move(keys));
}

double finite(const ConfigNode& scaling, const char* key, double value, double least) {
  if (!(value >= least) || std::isinf(value))
    throw(scaling.has(key) ? scaling.at(key) : scaling).error(text(key, " is ", value), text("a number of at least ", least));
  return value;
}

// What YaRN multiplies products of queries and keys by, for sequences that are `factor` times as long: its root (Peng et al. 2023, equation
// 22), times `weight`.
double yarn_magnitude(double factor, double weight) { return factor > 1 ? 0.1 * weight * std::log(factor) + 1 : 1; }

// Of transformers' "yarn". DeepSeek's files weigh the magnitude of rotated parts (mscale) and of whole heads (mscale_all_dim).
void read_yarn(const ConfigNode& scaling, bool latent, Dims& dims) {
  scaling.allow_only({"rope_type", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale",
                      "mscale_all_dim", "truncate"});
  const auto number = [&](const char* key, double otherwise) { return finite(scaling, key, scaling.get(key, otherwise), 0); };
  const double factor = dims["rope_factor"] = finite(scaling, "factor", scaling.at("factor").as_double(), 1);
  dims["rope_original_seq"] = static_cast<double>(bounded(scaling.at("original_max_position_embeddings"), 1));
  const double slow = dims["rope_beta_slow"] = finite(scaling, "beta_slow", scaling.get("beta_slow", 1.0), 1e-6);
  const double fast = dims["rope_beta_fast"] = number("beta_fast", 32);
  if (!(fast > slow))
    throw(scaling.has("beta_fast") ? scaling.at("beta_fast") : scaling)
        .error(text("beta_fast is ", fast), text("a number above beta_slow, ", slow));
  dims["rope_whole_pairs"] = scaling.get("truncate", true) ? 1 : 0;
  const double weight = number("mscale", 0), of_all = number("mscale_all_dim", 0);
  const bool both = weight != 0 && of_all != 0;
  const double inferred = both ? yarn_magnitude(factor, weight) / yarn_magnitude(factor, of_all) : yarn_magnitude(factor, 1);
  dims["rope_amplitude"] = number("attention_factor", inferred);
  if (!latent || of_all == 0) return;
  dims["rope_score_scale"] = yarn_magnitude(factor, of_all) * yarn_magnitude(factor, of_all);
  dims["rope_mscale_all_dim"] = of_all;
}

// As config.json says it, so that it can be copied from there.
void read_rope_scaling(const Settings& settings, Dims& dims) {
  const auto scaling = settings.find("rope_scaling");
  if (!scaling || scaling->is_null()) return;
  const bool latent = dims.contains("kv_lora");
  if (scaling->at("rope_type").as_choice({"llama3", "yarn"}) == "yarn") return read_yarn(*scaling, latent, dims);
  scaling->allow_only({"rope_type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
  dims["rope_factor"] = finite(*scaling, "factor", scaling->at("factor").as_double(), 1);
  const double low = finite(*scaling, "low_freq_factor", scaling->get("low_freq_factor", 1.0), 1e-6);
  const double high = scaling->get("high_freq_factor", 4.0);
  if (!(high > low) || std::isinf(high))
    throw(scaling->has("high_freq_factor") ? scaling->at("high_freq_factor") : *scaling)
        .error(text("high_freq_factor is ", high), text("a number above low_freq_factor, ", low));
  dims["rope_low_freq"] = low;
  dims["rope_high_freq"] = high;
  dims["rope_original_seq"] = static_cast<double>(bounded(scaling->at("original_max_position_embeddings"), 1));
}

void read_attention(const Settings& settings, Dims& dims) {
  const auto optional = [&](const char* key, std::int64_t fallback) { dims[key] = static_cast<double>(settings.count(key, fallback)); };
  const auto dim = [&](const char* key) { return static_cast<std::int64_t>(dims.at(key)); };
  optional("kv_heads", dim("heads"));
  settings.require_divides("kv_heads", dim("kv_heads"), "heads", dim("heads"));
  if (!settings.has("head_dim")) settings.require_divides("heads", dim("heads"), "hidden", dim("hidden"));
  optional("head_dim", dim("hidden") / dim("heads"));
  if (dim("head_dim") % 2 != 0)
    throw settings.at(settings.has("head_dim") ? "head_dim" : "heads")
        .error(text("a head of ", dim("head_dim"), " dimensions cannot be rotated in pairs"), "an even head_dim");
  if (settings.flag("qkv_bias", false)) dims["qkv_bias"] = 1;
  if (settings.flag("qk_norm", false)) dims["qk_norm"] = 1;
  if (const std::int64_t window = settings.count_or_zero("window"); window > 0) dims["window"] = static_cast<double>(window);
  read_rope_scaling(settings, dims);
}

void read_latent_attention(const Settings& settings, Dims& dims) {
  dims["q_lora"] = static_cast<double>(settings.count_or_zero("q_lora"));
  for (const char* key : {"kv_lora", "nope_dim", "rope_dim", "v_dim"}) dims[key] = static_cast<double>(settings.count(key));
  if (settings.count("rope_dim") % 2 != 0) throw settings.at("rope_dim").error("dimensions are rotated in pairs", "an even rope_dim");
  if (dims["v_dim"] > dims["nope_dim"] + dims["rope_dim"])
    throw settings.at("v_dim").error(text("found ", settings.count("v_dim")), "at most nope_dim + rope_dim");
  dims["kv_heads"] = dims["heads"];
  dims["head_dim"] = dims["nope_dim"] + dims["rope_dim"];
  read_rope_scaling(settings, dims);
}

// How experts are chosen, where that is not by their shares in a softmax alone.
void read_scores(const Settings& settings, Dims& dims) {
  if (settings.choice("scoring", {"softmax", "sigmoid"}, "softmax") == "sigmoid") dims["sigmoid_scores"] = 1;
  if (settings.flag("score_bias", false)) dims["score_bias"] = 1;
  const double rate = settings.real("score_bias_rate", 0);
  if (!(rate >= 0 && rate <= 1))
    throw settings.at("score_bias_rate").error(text("found ", rate), "0 to 1; DeepSeek-V3 was trained with 0.001");
  if (rate > 0 && !dims.contains("score_bias"))
    throw settings.at("score_bias_rate").error("the model has no biases of scores", "score_bias: true beside it");
  if (rate > 0) dims["score_bias_rate"] = rate;
  const double scale = settings.real("routed_scale", 1);
  if (!(scale > 0 && scale <= 1e6)) throw settings.at("routed_scale").error(text("found ", scale), "a positive number");
  if (scale != 1) dims["routed_scale"] = scale;
  const std::int64_t groups = settings.count("expert_groups", 1), experts = settings.count("experts");
  if (experts % groups != 0)
    throw settings.at("expert_groups").error(text("found ", groups, ", which do not divide ", experts, " experts"));
  if (groups == 1) return;
  const std::int64_t top = settings.count("top_groups"), each = settings.count("experts_per_token");
  if (top > groups || top * (experts / groups) < each)
    throw settings.at("top_groups")
        .error(text("found ", top, " of ", groups, " groups of ", experts / groups, " experts"),
               text("at most ", groups, ", with room for experts_per_token ", each));
  dims["expert_groups"] = static_cast<double>(groups);
  dims["top_groups"] = static_cast<double>(top);
}

void read_experts(const Settings& settings, const Family& family, Dims& dims) {
  const std::int64_t experts = settings.count("experts");
  const std::int64_t each = settings.count("experts_per_token");
  if (each > experts)
    throw settings.at("experts_per_token").error(text("found ", each, " of ", experts, " experts"), text("at most ", experts));
  dims["experts"] = static_cast<double>(experts);
  dims["experts_per_token"] = static_cast<double>(each);
  for (const char* key : {"balance_loss", "z_loss", "capacity"}) {
    const double weight = settings.real(key, 0);
    if (!(weight >= 0 && weight <= 1e6)) throw settings.at(key).error(text("found ", weight), "a number of at least 0");
    if (weight > 0) dims[key] = weight;
  }
  if (!family.own_expert_ffn) {
    dims["expert_ffn"] = dims["ffn"];
    return;
  }
  if (!settings.flag("norm_topk", true)) dims["norm_topk"] = 0;
  if (family.latent) read_scores(settings, dims);
  dims["expert_ffn"] = static_cast<double>(settings.count("expert_ffn"));
  if (const std::int64_t shared = settings.count_or_zero("shared_ffn"); shared > 0) {
    dims["shared_ffn"] = static_cast<double>(shared);
    if (!family.latent) dims["shared_gate"] = 1;
  }
}

void add_attention(Parameters& parameters, const Dims& dims, const std::string& prefix, const Initializer& outer) {
  const auto dim = [&](const char* key) { return static_cast<std::int64_t>(dims.at(key)); };
  const std::int64_t hidden = dim("hidden");
  const std::int64_t query = dim("heads") * dim("head_dim");
  const std::int64_t key_value = dim("kv_heads") * dim("head_dim");
  const std::initializer_list<std::pair<const char*, std::int64_t>> maps = {
      {"q_proj", query}, {"k_proj", key_value}, {"v_proj", key_value}};
  // The weights lie side by side, so that they can be multiplied as one matrix.
  for (const auto& [name, out] : maps) add_linear(parameters, prefix + name, out, hidden, 0, false);
  if (dims.contains("qkv_bias"))
    for (const auto& [name, out] : maps) parameters.push_back(bias(prefix + name + ".bias", out, 0));
  add_linear(parameters, prefix + "o_proj", hidden, query, 1, false, outer);
  if (!dims.contains("qk_norm")) return;
  parameters.push_back(norm_weight(prefix + "q_norm.weight", dim("head_dim")));
  parameters.push_back(norm_weight(prefix + "k_norm.weight", dim("head_dim")));
}

void add_latent_attention(Parameters& parameters, const Dims& dims, const std::string& prefix, const Initializer& outer) {
  const auto dim = [&](const char* key) { return static_cast<std::int64_t>(dims.at(key)); };
  const std::int64_t hidden = dim("hidden");
  const std::int64_t query = dim("heads") * (dim("nope_dim") + dim("rope_dim"));
  if (const std::int64_t rank = dim("q_lora"); rank > 0) {
    add_linear(parameters, prefix + "q_a_proj", rank, hidden, -1, false);
    parameters.push_back(norm_weight(prefix + "q_a_layernorm.weight", rank));
    add_linear(parameters, prefix + "q_b_proj", query, rank, 0, false);
  } else {
    add_linear(parameters, prefix + "q_proj", query, hidden, 0, false);
  }
  add_linear(parameters, prefix + "kv_a_proj_with_mqa", dim("kv_lora") + dim("rope_dim"), hidden, -1, false);
  parameters.push_back(norm_weight(prefix + "kv_a_layernorm.weight", dim("kv_lora")));
  add_linear(parameters, prefix + "kv_b_proj", dim("heads") * (dim("nope_dim") + dim("v_dim")), dim("kv_lora"), 0, false);
  add_linear(parameters, prefix + "o_proj", hidden, dim("heads") * dim("v_dim"), 1, false, outer);
}

void add_dense(Parameters& parameters, const std::string& prefix, std::int64_t hidden, std::int64_t ffn, const Initializer& outer) {
  add_linear(parameters, prefix + "gate_proj", ffn, hidden, 0, false);
  add_linear(parameters, prefix + "up_proj", ffn, hidden, 0, false);
  add_linear(parameters, prefix + "down_proj", hidden, ffn, 1, false, outer);
}

void add_experts(Parameters& parameters, const Dims& dims, const std::string& prefix, const Initializer& outer) {
  const auto dim = [&](const char* key) { return static_cast<std::int64_t>(dims.at(key)); };
  const std::int64_t hidden = dim("hidden");
  const std::int64_t experts = dim("experts");
  const std::int64_t ffn = dim("expert_ffn");
  add_linear(parameters, prefix + "gate", experts, hidden, -1, false);
  if (dims.contains("score_bias")) {
    parameters.push_back(bias(prefix + "gate.e_score_correction_bias", experts));
    if (dims.contains("score_bias_rate")) parameters.back().sign_rate = dims.at("score_bias_rate");
  }
  parameters.push_back({prefix + "experts.gate_up_proj", {experts, 2 * ffn, hidden}, 1, normal(), true, {}, 0, false, 2});
  parameters.push_back({prefix + "experts.down_proj", {experts, hidden, ffn}, 2, outer, true, {}, 0});
  if (!dims.contains("shared_ffn")) return;
  const bool gated = dims.contains("shared_gate");
  add_dense(parameters, prefix + (gated ? "shared_expert." : "shared_experts."), hidden, dim("shared_ffn"), outer);
  if (gated) add_linear(parameters, prefix + "shared_expert_gate", 1, hidden, -1, false);
}

bool is_plain(const Dims& dims) {
  for (const char* key : {"dropout", "norms", "kv_lora", "experts"})
    if (dims.contains(key)) return false;
  return true;
}

BlockSpec layer(const Dims& dims) {
  const auto dim = [&](const char* key) { return static_cast<std::int64_t>(dims.at(key)); };
  const std::int64_t hidden = dim("hidden");
  const bool sandwich = dims.contains("norms");
  const Initializer outer = residual_normal(dim("layers"));
  const std::string prefix = "model.layers.{}.";
  BlockSpec block;
  block.kind = is_plain(dims) ? "transformer_layer" : dims.contains("experts") ? "moe_layer" : "decoder_layer";
  block.name = "layers.{}";
  block.dims = dims;
  block.parameters.push_back(norm_weight(prefix + "input_layernorm.weight", hidden));
  (dims.contains("kv_lora") ? add_latent_attention : add_attention)(block.parameters, dims, prefix + "self_attn.", outer);
  block.parameters.push_back(norm_weight(prefix + "post_attention_layernorm.weight", hidden));
  if (sandwich) block.parameters.push_back(norm_weight(prefix + "pre_mlp_layernorm.weight", hidden));
  if (dims.contains("experts"))
    add_experts(block.parameters, dims, prefix + "mlp.", outer);
  else
    add_dense(block.parameters, prefix + "mlp.", hidden, dim("ffn"), outer);
  if (sandwich) block.parameters.push_back(norm_weight(prefix + "post_mlp_layernorm.weight", hidden));
  block.inputs = {{"hidden", {dim("seq"), hidden}}};
  block.outputs = block.inputs;
  return block;
}

// The first `dense` layers without experts, then those with.
void add_layers(ModelSpec& model, const Family& family, int dense) {
  const int layers = static_cast<int>(model.dim("layers"));
  if (dense > 0) {
    Dims dims = model.dims;
    for (const char* key :
         {"experts", "experts_per_token", "expert_ffn", "shared_ffn", "shared_gate", "norm_topk", "sigmoid_scores", "score_bias",
          "score_bias_rate", "routed_scale", "expert_groups", "top_groups", "capacity", "balance_loss", "z_loss"})
      dims.erase(key);
    model.repeats.push_back({layer(dims), dense});
  }
  if (dense < layers) model.repeats.push_back({layer(model.dims), layers - dense, dense});
  if (!family.routed) return;
  std::int64_t common = model.dim("expert_ffn");
  for (const char* key : {"shared_ffn", "ffn"})
    if (model.dims.contains(key)) common = std::gcd(common, model.dim(key));
  model.dims["ffn"] = static_cast<double>(common);
}

}  // namespace

ModelSpec read_decoder(const Settings& settings, const std::string& arch) {
  const Family& family = family_of(arch);
  settings.allow_only(keys_of(family));
  ModelSpec model;
  model.arch = arch;
  Dims& dims = model.dims;
  for (const char* key : {"hidden", "layers", "heads"}) dims[key] = static_cast<double>(settings.count(key));
  const std::int64_t dense = family.own_expert_ffn ? settings.count_or_zero("dense_layers") : family.routed ? 0 : settings.count("layers");
  if (dense > settings.count("layers"))
    throw settings.at("dense_layers").error(text("found ", dense, " of ", settings.count("layers"), " layers"));
  if (dense > 0 || !family.own_expert_ffn) dims["ffn"] = static_cast<double>(settings.count("ffn"));
  for (const char* key : {"seq", "vocab"}) dims[key] = static_cast<double>(settings.count(key));
  (family.latent ? read_latent_attention : read_attention)(settings, dims);
  dims["rope_theta"] = settings.real("rope_theta", 10000.0);
  dims["norm_eps"] = settings.real("norm_eps", 1e-5);
  if (dims["rope_theta"] <= 0) throw settings.at("rope_theta").error("the rotary base must be positive");
  if (dims["norm_eps"] < 0) throw settings.at("norm_eps").error("must not be negative");
  if (family.sandwich) dims["norms"] = 4;
  if (family.routed) read_experts(settings, family, dims);
  read_run_keys(settings, dims, family.sandwich ? "autograd" : "tessera", 0);
  model.tied_embeddings = settings.flag("tied", false);

  const std::int64_t hidden = model.dim("hidden");
  const std::int64_t vocab = model.dim("vocab");
  const TensorSpec hidden_state{"hidden", {model.dim("seq"), hidden}};
  BlockSpec embedding{"embedding", "embed",       dims, {{"model.embed_tokens.weight", {vocab, hidden}, 0, normal(), true, {}}},
                      {},          {hidden_state}};
  BlockSpec head{"lm_head",
                 "head",
                 dims,
                 {norm_weight("model.norm.weight", hidden),
                  {"lm_head.weight", {vocab, hidden}, 0, normal(), true, model.tied_embeddings ? "model.embed_tokens.weight" : ""}},
                 {hidden_state},
                 {{"loss", {}}}};
  model.repeats.push_back({std::move(embedding), 1});
  add_layers(model, family, static_cast<int>(dense));
  model.repeats.push_back({std::move(head), 1});
  return model;
}

}  // namespace tessera::model
