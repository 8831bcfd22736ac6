// GPT-2 and GPT-3 (Radford et al. 2019, Brown et al. 2020) and their relatives with other positions (BLOOM, MPT, GPT-NeoX):
// LayerNorm, GELU, biases. Parameters are named as Hugging Face's GPT-2 names them.
#include "model/families.hpp"

namespace tessera::model {
namespace {

// GPT-2 stores its linear maps as [in, out].
void add_map(std::vector<ParameterSpec>& parameters, const std::string& name, std::int64_t in, std::int64_t out, int split_dim, bool biased,
             const Initializer& init) {
  parameters.push_back({name + ".weight", {in, out}, split_dim, init, true, {}});
  if (biased) parameters.push_back(bias(name + ".bias", out, split_dim == 1 ? 0 : -1));
}

void add_norm(std::vector<ParameterSpec>& parameters, const std::string& name, std::int64_t hidden, bool biased) {
  parameters.push_back(norm_weight(name + ".weight", hidden));
  if (biased) parameters.push_back(bias(name + ".bias", hidden));
}

BlockSpec layer(const ModelSpec& model, bool biased) {
  const std::int64_t hidden = model.dim("hidden");
  const std::int64_t query = model.dim("heads") * model.dim("head_dim");
  const std::int64_t key_value = model.dim("kv_heads") * model.dim("head_dim");
  const std::int64_t ffn = model.dim("ffn");
  const Initializer outer = residual_normal(model.dim("layers"));
  const std::string prefix = "transformer.h.{}.";
  BlockSpec block;
  block.kind = "decoder_layer";
  block.name = "h.{}";
  block.dims = model.dims;
  add_norm(block.parameters, prefix + "ln_1", hidden, biased);
  add_map(block.parameters, prefix + "attn.c_attn", hidden, query + 2 * key_value, 1, biased, normal());
  add_map(block.parameters, prefix + "attn.c_proj", query, hidden, 0, biased, outer);
  add_norm(block.parameters, prefix + "ln_2", hidden, biased);
  add_map(block.parameters, prefix + "mlp.c_fc", hidden, (model.dims.at("gated") != 0 ? 2 : 1) * ffn, 1, biased, normal());
  add_map(block.parameters, prefix + "mlp.c_proj", ffn, hidden, 0, biased, outer);
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
}

}  // namespace

ModelSpec read_gpt(const Settings& settings) {
  settings.allow_only(with_run_keys({"hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "gated", "seq", "vocab", "tied",
                                     "positions", "max_positions", "biases", "embedding_norm", "norm_eps"}));
  ModelSpec model;
  model.arch = "gpt";
  read_dims(settings, model);
  read_run_keys(settings, model.dims, "autograd", 0.1);
  const bool biased = settings.flag("biases", true);
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
