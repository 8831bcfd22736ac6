// T5 (Raffel et al. 2020): an encoder, and a decoder each of whose layers reads the encoder's output. Parameters are named as
// Hugging Face's T5ForConditionalGeneration names them, and begin as its authors' do: scores are not divided by the root of their
// dimension, which the maps of queries make up for.
#include <cmath>

#include "model/families.hpp"

namespace tessera::model {
namespace {

struct Side {
  std::string name;  // "encoder", "decoder"
  bool decodes;
};

Initializer for_inputs(std::int64_t width) { return normal(1 / std::sqrt(static_cast<double>(width))); }

void add_map(std::vector<ParameterSpec>& parameters, const std::string& name, std::int64_t out, std::int64_t in, int split_dim) {
  add_linear(parameters, name, out, in, split_dim, false, for_inputs(in));
}

void add_attention(std::vector<ParameterSpec>& parameters, const ModelSpec& model, const std::string& prefix) {
  const std::int64_t hidden = model.dim("hidden"), width = model.dim("heads") * model.dim("head_dim");
  add_linear(parameters, prefix + "q", width, hidden, 0, false, for_inputs(hidden * model.dim("head_dim")));
  for (const char* name : {"k", "v"}) add_map(parameters, prefix + name, width, hidden, 0);
  add_map(parameters, prefix + "o", hidden, width, 1);
}

// The layers of a side share the table of relative positions, which the first one owns.
BlockSpec layer(const ModelSpec& model, const Side& side, bool first) {
  const std::int64_t hidden = model.dim("hidden");
  const std::int64_t ffn = model.dim("ffn");
  const std::string prefix = side.name + ".block.{}.layer.";
  const std::string table = "0.SelfAttention.relative_attention_bias.weight";
  const std::int64_t seq = side.decodes ? model.dim("decoder_seq") : model.dim("seq");
  BlockSpec block;
  block.kind = side.decodes ? "decoder_layer" : "encoder_layer";
  block.name = side.name + ".{}";
  block.dims = model.dims;
  block.dims["seq"] = static_cast<double>(seq);
  block.dims["causal"] = side.decodes ? 1 : 0;
  if (side.decodes) block.dims["cross_seq"] = model.dims.at("seq");
  // In the order in which nn/ takes them.
  add_attention(block.parameters, model, prefix + "0.SelfAttention.");
  block.parameters.push_back({prefix + table,
                              {model.dim("buckets"), model.dim("heads")},
                              1,
                              for_inputs(hidden),
                              true,
                              first ? "" : side.name + ".block.0.layer." + table});
  block.parameters.push_back(norm_weight(prefix + "0.layer_norm.weight", hidden));
  if (side.decodes) {
    add_attention(block.parameters, model, prefix + "1.EncDecAttention.");
    block.parameters.push_back(norm_weight(prefix + "1.layer_norm.weight", hidden));
  }
  const std::string feed_forward = prefix + (side.decodes ? "2." : "1.");
  const bool gated = model.dims.at("gated") != 0;
  for (const char* name : {"wi_0", "wi_1"})
    if (gated) add_map(block.parameters, feed_forward + "DenseReluDense." + name, ffn, hidden, 0);
  if (!gated) add_map(block.parameters, feed_forward + "DenseReluDense.wi", ffn, hidden, 0);
  add_map(block.parameters, feed_forward + "DenseReluDense.wo", hidden, ffn, 1);
  block.parameters.push_back(norm_weight(feed_forward + "layer_norm.weight", hidden));
  block.inputs = {{side.name, {seq, hidden}}};
  block.outputs = block.inputs;
  if (side.decodes) block.inputs.push_back({"encoded", {model.dim("seq"), hidden}});
  return block;
}

void add_layers(ModelSpec& model, const Side& side, int count) {
  model.repeats.push_back({layer(model, side, true), 1});
  if (count > 1) model.repeats.push_back({layer(model, side, false), count - 1, 1});
}

// The decoder looks its tokens up in the encoder's table.
BlockSpec embedding(const ModelSpec& model, const Side& side) {
  const std::int64_t seq = side.decodes ? model.dim("decoder_seq") : model.dim("seq");
  BlockSpec block{"position_embedding", side.name + ".embed", model.dims, {}, {}, {{side.name, {seq, model.dim("hidden")}}}};
  block.dims["seq"] = static_cast<double>(seq);
  if (side.decodes) block.dims["decodes"] = 1;
  const std::string name = side.decodes ? "decoder.embed_tokens.weight" : "shared.weight";
  block.parameters.push_back({name, {model.dim("vocab"), model.dim("hidden")}, 0, normal(1), true, side.decodes ? "shared.weight" : ""});
  return block;
}

BlockSpec encoder_end(const ModelSpec& model) {
  const std::vector<std::int64_t> shape = {model.dim("seq"), model.dim("hidden")};
  return {"final_norm",         "encoder.norm",      model.dims, {norm_weight("encoder.final_layer_norm.weight", model.dim("hidden"))},
          {{"encoder", shape}}, {{"encoded", shape}}};
}

BlockSpec head(const ModelSpec& model) {
  BlockSpec block{"language_head", "head", model.dims, {}, {{"decoder", {model.dim("decoder_seq"), model.dim("hidden")}}}, {{"loss", {}}}};
  block.dims["seq"] = model.dims.at("decoder_seq");
  block.dims["drops_normed"] = 1;
  // A table that begins with elements of about 1 gives logits of about 1 so.
  if (model.tied_embeddings) block.dims["head_scale"] = for_inputs(model.dim("hidden")).scale;
  block.parameters.push_back(norm_weight("decoder.final_layer_norm.weight", model.dim("hidden")));
  // Whoever holds a shared table begins with the same.
  block.parameters.push_back({"lm_head.weight",
                              {model.dim("vocab"), model.dim("hidden")},
                              0,
                              model.tied_embeddings ? normal(1) : for_inputs(model.dim("hidden")),
                              true,
                              model.tied_embeddings ? "shared.weight" : ""});
  return block;
}

}  // namespace

ModelSpec read_t5(const Settings& settings) {
  settings.allow_only(with_run_keys({"hidden", "layers", "decoder_layers", "heads", "head_dim", "ffn", "gated", "seq", "decoder_seq",
                                     "vocab", "tied", "buckets", "max_distance", "norm_eps"}));
  ModelSpec model;
  model.arch = "t5";
  auto& dims = model.dims;
  for (const char* key : {"hidden", "layers", "heads", "ffn", "seq", "vocab"}) dims[key] = static_cast<double>(settings.count(key));
  dims["decoder_layers"] = static_cast<double>(settings.count("decoder_layers", model.dim("layers")));
  dims["decoder_seq"] = static_cast<double>(settings.count("decoder_seq", model.dim("seq")));
  dims["kv_heads"] = dims["heads"];
  if (!settings.has("head_dim")) settings.require_divides("heads", model.dim("heads"), "hidden", model.dim("hidden"));
  dims["head_dim"] = static_cast<double>(settings.count("head_dim", model.dim("hidden") / model.dim("heads")));
  dims["buckets"] = static_cast<double>(settings.count("buckets", 32));
  dims["max_distance"] = static_cast<double>(settings.count("max_distance", 128));
  // Of an encoder half are of earlier keys, and half of these of one distance each; of a decoder all.
  constexpr std::int64_t kLeastBuckets = 4;
  if (model.dim("buckets") < kLeastBuckets)
    throw settings.at("buckets").error(text("found ", model.dim("buckets")), text("at least ", kLeastBuckets));
  if (model.dim("max_distance") <= model.dim("buckets") / 2)
    throw settings.at(settings.has("max_distance") ? "max_distance" : "buckets")
        .error(text("max_distance is ", model.dim("max_distance"), ", with ", model.dim("buckets"), " buckets"),
               "a max_distance above half of the buckets");
  dims["gated"] = settings.flag("gated", false) ? 1 : 0;
  if (dims["gated"] == 0) dims["relu"] = 1;
  dims["rotary"] = 0;
  dims["relative_bias"] = 1;
  dims["norm_eps"] = settings.real("norm_eps", 1e-6);
  read_run_keys(settings, dims, "tessera", 0.1);
  model.tied_embeddings = settings.flag("tied", true);

  const Side encoder{"encoder", false};
  const Side decoder{"decoder", true};
  model.repeats.push_back({embedding(model, encoder), 1});
  add_layers(model, encoder, static_cast<int>(model.dim("layers")));
  model.repeats.push_back({encoder_end(model), 1});
  model.repeats.push_back({embedding(model, decoder), 1});
  add_layers(model, decoder, static_cast<int>(model.dim("decoder_layers")));
  model.repeats.push_back({head(model), 1});
  return model;
}

}  // namespace tessera::model
