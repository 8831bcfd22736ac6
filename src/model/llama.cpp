// The Llama family: RMSNorm, rotary embedding, grouped-query attention, SwiGLU (Touvron et al. 2023). Parameters are named
// as Hugging Face transformers names them.
#include <cmath>

#include "model/model.hpp"

namespace tessera::model {
namespace {

std::int64_t nearest_divisor(std::int64_t whole, std::int64_t wanted) {
  std::int64_t best = 1;
  const auto consider = [&](std::int64_t d) {
    const std::int64_t away = std::abs(d - wanted) - std::abs(best - wanted);
    if (away < 0 || (away == 0 && d < best)) best = d;
  };
  for (std::int64_t d = 1; d <= whole / d; ++d) {
    if (whole % d != 0) continue;
    consider(d);
    consider(whole / d);
  }
  return best;
}

void require_divides(const ConfigNode& node, const std::string& part, std::int64_t value, const std::string& whole, std::int64_t of) {
  if (of % value == 0) return;
  throw node.at(part).error(text(value, " does not divide ", whole, " ", of), text("a divisor of ", of), text("nearest: ", nearest_divisor(of, value)));
}

Initializer normal(double deviation) { return {Initializer::Kind::normal, deviation}; }

ParameterSpec norm_weight(const std::string& name, std::int64_t hidden) {
  return {name, {hidden}, -1, {Initializer::Kind::ones, 0}, false, {}};
}

BlockSpec layer(const std::map<std::string, double>& dims, std::int64_t layers) {
  const auto dim = [&](const char* key) { return static_cast<std::int64_t>(dims.at(key)); };
  const std::int64_t hidden = dim("hidden");
  const std::int64_t query = dim("heads") * dim("head_dim");
  const std::int64_t key_value = dim("kv_heads") * dim("head_dim");
  const std::int64_t ffn = dim("ffn");
  // Projections back into the residual stream start smaller the deeper the model is (GPT-2).
  const Initializer inner = normal(0.02);
  const Initializer outer = normal(0.02 / std::sqrt(2.0 * static_cast<double>(layers)));
  const std::string prefix = "model.layers.{}.";
  BlockSpec block;
  block.kind = "transformer_layer";
  block.name = "layers.{}";
  block.dims = dims;
  block.parameters = {norm_weight(prefix + "input_layernorm.weight", hidden),
                      {prefix + "self_attn.q_proj.weight", {query, hidden}, 0, inner, true, {}},
                      {prefix + "self_attn.k_proj.weight", {key_value, hidden}, 0, inner, true, {}},
                      {prefix + "self_attn.v_proj.weight", {key_value, hidden}, 0, inner, true, {}},
                      {prefix + "self_attn.o_proj.weight", {hidden, query}, 1, outer, true, {}},
                      norm_weight(prefix + "post_attention_layernorm.weight", hidden),
                      {prefix + "mlp.gate_proj.weight", {ffn, hidden}, 0, inner, true, {}},
                      {prefix + "mlp.up_proj.weight", {ffn, hidden}, 0, inner, true, {}},
                      {prefix + "mlp.down_proj.weight", {hidden, ffn}, 1, outer, true, {}}};
  block.inputs = {{"hidden", {dim("seq"), hidden}}};
  block.outputs = block.inputs;
  return block;
}

ModelSpec read_llama(const ConfigNode& node) {
  node.allow_only({"arch", "hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "seq", "vocab", "tied", "rope_theta", "norm_eps"});
  ModelSpec model;
  model.arch = "llama";
  auto& dims = model.dims;
  for (const char* key : {"hidden", "layers", "heads", "ffn", "seq", "vocab"}) dims[key] = static_cast<double>(node.at(key).as_int_at_least(1));
  const auto optional = [&](const char* key, std::int64_t fallback) {
    const auto found = node.find(key);
    dims[key] = static_cast<double>(found ? found->as_int_at_least(1) : fallback);
  };
  const std::int64_t hidden = model.dim("hidden");
  const std::int64_t heads = model.dim("heads");
  optional("kv_heads", heads);
  require_divides(node, "kv_heads", model.dim("kv_heads"), "heads", heads);
  if (!node.has("head_dim")) require_divides(node, "heads", heads, "hidden", hidden);
  optional("head_dim", hidden / heads);
  if (model.dim("head_dim") % 2 != 0)
    throw (node.has("head_dim") ? node.at("head_dim") : node.at("heads")).error(text("a head of ", model.dim("head_dim"), " dimensions cannot be rotated in pairs"), "an even head_dim");
  dims["rope_theta"] = node.get("rope_theta", 10000.0);
  dims["norm_eps"] = node.get("norm_eps", 1e-5);
  if (dims["rope_theta"] <= 0) throw node.at("rope_theta").error("the rotary base must be positive");
  if (dims["norm_eps"] < 0) throw node.at("norm_eps").error("must not be negative");
  model.tied_embeddings = node.get("tied", false);

  const std::int64_t vocab = model.dim("vocab");
  const TensorSpec hidden_state{"hidden", {model.dim("seq"), hidden}};
  BlockSpec embedding{"embedding", "embed", dims, {{"model.embed_tokens.weight", {vocab, hidden}, 0, normal(0.02), true, {}}}, {}, {hidden_state}};
  BlockSpec head{"lm_head",
                 "head",
                 dims,
                 {norm_weight("model.norm.weight", hidden),
                  {"lm_head.weight", {vocab, hidden}, 0, normal(0.02), true, model.tied_embeddings ? "model.embed_tokens.weight" : ""}},
                 {hidden_state},
                 {{"loss", {}}}};
  model.repeats = {{std::move(embedding), 1}, {layer(dims, model.dim("layers")), static_cast<int>(model.dim("layers"))}, {std::move(head), 1}};
  return model;
}

}  // namespace

ModelSpec read_model(const ConfigNode& node) {
  node.at("arch").as_choice({"llama"});
  return read_llama(node);
}

}  // namespace tessera::model
