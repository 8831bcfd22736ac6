// GPT-2 and GPT-3 (Radford et al. 2019, Brown et al. 2020) and their relatives with other positions (BLOOM, MPT, GPT-NeoX):
// LayerNorm, GELU, biases. Parameters are named as Hugging Face's GPT-2 names them.
#include "model/families.hpp"

namespace tessera::model {
namespace {

// GPT-2 stores its linear maps as [in, out]. Of `stacked` maps that stand side by side as one, each is cut by itself.
ParameterSpec map(const std::string& name, std::int64_t in, std::int64_t out, int split_dim, const Initializer& init, int stacked = 1) {
  return {name + ".weight", {in, out}, split_dim, init, true, {}, -1, false, stacked};
}

ParameterSpec cut_bias(const std::string& name, std::int64_t out, int stacked) {
  ParameterSpec values = bias(name + ".bias", out, 0);
  values.stacked = stacked;
  return values;
}

// As transformers' GPT-2 names them: queries, keys and values are one map or, where they differ in width, as in its attention to
// an encoder, queries are another.
void add_attention(std::vector<ParameterSpec>& parameters, const std::string& prefix, std::int64_t hidden, std::int64_t query,
                   std::int64_t key_value, bool biased, const Initializer& outer) {
  struct Part {
    const char* name;
    std::int64_t out;
    int stacked;
  };
  const std::vector<Part> parts = query == key_value ? std::vector<Part>{{"c_attn", 3 * query, 3}}
                                                     : std::vector<Part>{{"q_attn", query, 1}, {"c_attn", 2 * key_value, 2}};
  for (const Part& part : parts) parameters.push_back(map(prefix + part.name, hidden, part.out, 1, normal(), part.stacked));
  if (biased)
    for (const Part& part : parts) parameters.push_back(cut_bias(prefix + part.name, part.out, part.stacked));
  parameters.push_back(map(prefix + "c_proj", query, hidden, 0, outer));
  if (biased) parameters.push_back(bias(prefix + "c_proj.bias", hidden));
}

void add_feed_forward(std::vector<ParameterSpec>& parameters, const std::string& prefix, std::int64_t hidden, std::int64_t ffn, bool gated,
                      bool biased, const Initializer& outer) {
  const int maps = gated ? 2 : 1;
  parameters.push_back(map(prefix + "c_fc", hidden, maps * ffn, 1, normal(), maps));
  if (biased) parameters.push_back(cut_bias(prefix + "c_fc", maps * ffn, maps));
  parameters.push_back(map(prefix + "c_proj", ffn, hidden, 0, outer));
  if (biased) parameters.push_back(bias(prefix + "c_proj.bias", hidden));
}

void add_norm(std::vector<ParameterSpec>& parameters, const std::string& name, std::int64_t hidden, bool biased) {
  parameters.push_back(norm_weight(name + ".weight", hidden));
  if (biased) parameters.push_back(bias(name + ".bias", hidden));
}

BlockSpec layer(const ModelSpec& model, bool biased) {
  const std::int64_t hidden = model.dim("hidden");
  const std::int64_t query = model.dim("heads") * model.dim("head_dim");
  const std::int64_t key_value = model.dim("kv_heads") * model.dim("head_dim");
  const Initializer outer = residual_normal(model.dim("layers"));
  const std::string prefix = "transformer.h.{}.";
  BlockSpec block;
  block.kind = "decoder_layer";
  block.name = "h.{}";
  block.dims = model.dims;
  add_norm(block.parameters, prefix + "ln_1", hidden, biased);
  add_attention(block.parameters, prefix + "attn.", hidden, query, key_value, biased, outer);
  add_norm(block.parameters, prefix + "ln_2", hidden, biased);
  add_feed_forward(block.parameters, prefix + "mlp.", hidden, model.dim("ffn"), model.dims.at("gated") != 0, biased, outer);
  block.inputs = {{"hidden", {model.dim("seq"), hidden}}};
  block.outputs = block.inputs;
  return block;
}

void read_dims(const Settings& settings, ModelSpec& model) {
  auto& dims = model.dims;
  for (const char* key : {"hidden", "layers", "heads", "seq", "vocab"}) dims[key] = static_cast<double>(settings.count(key));
  dims["ffn"] = static_cast<double>(settings.count("ffn", 4 * model.dim("hidden")));
  dims["kv_heads"] = static_cast<double>(settings.count("kv_heads", model.dim("heads")));
  settings.require_divides("kv_heads", model.dim("kv_heads"), "heads", model.dim("heads"));
  if (!settings.has("head_dim")) settings.require_divides("heads", model.dim("heads"), "hidden", model.dim("hidden"));
  dims["head_dim"] = static_cast<double>(settings.count("head_dim", model.dim("hidden") / model.dim("heads")));
  dims["gated"] = settings.flag("gated", false) ? 1 : 0;
  const std::string positions = settings.choice("positions", {"learned", "rotary", "alibi", "none"}, "learned");
  dims["rotary"] = positions == "rotary" ? 1 : 0;
  if (positions == "rotary") {
    if (model.dim("head_dim") % 2 != 0)
      throw settings.at(settings.has("head_dim") ? "head_dim" : "heads")
          .error(text("a head of ", model.dim("head_dim"), " dimensions cannot be rotated in pairs"), "an even head_dim");
    dims["rope_theta"] = 10000;
  }
  if (positions == "alibi") dims["relative_bias"] = 1;
  if (positions == "learned") {
    dims["positions"] = static_cast<double>(settings.count("max_positions", model.dim("seq")));
    if (dims["positions"] < dims["seq"])
      throw settings.at("max_positions")
          .error(text("found ", model.dim("positions"), " for samples of ", model.dim("seq")), "at least seq");
  } else if (settings.has("max_positions")) {
    throw settings.at("max_positions").error("positions: " + positions + " has no table", "positions: learned");
  }
  if (settings.flag("embedding_norm", false)) dims["embedding_norm"] = 1;
  dims["norm_eps"] = settings.real("norm_eps", 1e-5);
  for (const char* key : {"layer_norm", "gelu", "maps_in_out"}) dims[key] = 1;
  if (settings.flag("biases", true)) dims["biases"] = 1;
}

}  // namespace

ModelSpec read_gpt(const Settings& settings) {
  settings.allow_only(with_run_keys({"hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "gated", "seq", "vocab", "tied",
                                     "positions", "max_positions", "biases", "embedding_norm", "norm_eps"}));
  ModelSpec model;
  model.arch = "gpt";
  read_dims(settings, model);
  read_run_keys(settings, model.dims, "tessera", 0.1);
  const bool biased = model.dims.contains("biases");
  model.tied_embeddings = settings.flag("tied", true);

  const std::int64_t hidden = model.dim("hidden");
  const std::int64_t vocab = model.dim("vocab");
  const TensorSpec hidden_state{"hidden", {model.dim("seq"), hidden}};
  BlockSpec embedding{"position_embedding", "embed", model.dims, {}, {}, {hidden_state}};
  embedding.parameters.push_back({"transformer.wte.weight", {vocab, hidden}, 0, normal(), true, {}});
  if (model.dims.contains("positions"))
    embedding.parameters.push_back({"transformer.wpe.weight", {model.dim("positions"), hidden}, -1, normal(), true, {}});
  if (model.dims.contains("embedding_norm")) add_norm(embedding.parameters, "transformer.ln_e", hidden, biased);
  BlockSpec head{"language_head", "head", model.dims, {}, {hidden_state}, {{"loss", {}}}};
  add_norm(head.parameters, "transformer.ln_f", hidden, biased);
  head.parameters.push_back({"lm_head.weight", {vocab, hidden}, 0, normal(), true, model.tied_embeddings ? "transformer.wte.weight" : ""});
  model.repeats = {{std::move(embedding), 1}, {layer(model, biased), static_cast<int>(model.dim("layers"))}, {std::move(head), 1}};
  return model;
}

}  // namespace tessera::model
