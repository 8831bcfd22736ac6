// BERT (Devlin et al. 2019) with its masked-language-model head, named as Hugging Face's BertForMaskedLM and
// BertForPreTraining name it.
#include "model/families.hpp"

namespace tessera::model {
namespace {

BlockSpec layer(const ModelSpec& model) {
  const std::int64_t hidden = model.dim("hidden");
  const std::int64_t ffn = model.dim("ffn");
  const std::string prefix = "bert.encoder.layer.{}.";
  BlockSpec block;
  block.kind = "encoder_layer";
  block.name = "layer.{}";
  block.dims = model.dims;
  // In the order in which nn/ takes them.
  for (const char* name : {"query", "key", "value"})
    add_linear(block.parameters, prefix + "attention.self." + name, hidden, hidden, 0, false);
  for (const char* name : {"query", "key", "value"})
    block.parameters.push_back(bias(prefix + "attention.self." + name + ".bias", hidden, 0));
  add_linear(block.parameters, prefix + "attention.output.dense", hidden, hidden, 1, true);
  add_layer_norm(block.parameters, prefix + "attention.output.LayerNorm", hidden);
  add_linear(block.parameters, prefix + "intermediate.dense", ffn, hidden, 0, true);
  add_linear(block.parameters, prefix + "output.dense", hidden, ffn, 1, true);
  add_layer_norm(block.parameters, prefix + "output.LayerNorm", hidden);
  block.inputs = {{"hidden", {model.dim("seq"), hidden}}};
  block.outputs = block.inputs;
  return block;
}

BlockSpec embedding(const ModelSpec& model) {
  const std::int64_t hidden = model.dim("hidden");
  const std::string prefix = "bert.embeddings.";
  BlockSpec block{"position_embedding", "embed", model.dims, {}, {}, {{"hidden", {model.dim("seq"), hidden}}}};
  block.parameters.push_back({prefix + "word_embeddings.weight", {model.dim("vocab"), hidden}, 0, normal(), true, {}});
  block.parameters.push_back({prefix + "position_embeddings.weight", {model.dim("positions"), hidden}, -1, normal(), true, {}});
  block.parameters.push_back({prefix + "token_type_embeddings.weight", {model.dim("token_types"), hidden}, -1, normal(), true, {}});
  add_layer_norm(block.parameters, prefix + "LayerNorm", hidden);
  return block;
}

BlockSpec head(const ModelSpec& model, bool next_sentence) {
  const std::int64_t hidden = model.dim("hidden");
  BlockSpec block{"language_head", "head", model.dims, {}, {{"hidden", {model.dim("seq"), hidden}}}, {{"loss", {}}}};
  add_linear(block.parameters, "cls.predictions.transform.dense", hidden, hidden, -1, true);
  add_layer_norm(block.parameters, "cls.predictions.transform.LayerNorm", hidden);
  block.parameters.push_back({"cls.predictions.decoder.weight",
                              {model.dim("vocab"), hidden},
                              0,
                              normal(),
                              true,
                              model.tied_embeddings ? "bert.embeddings.word_embeddings.weight" : ""});
  block.parameters.push_back(bias("cls.predictions.bias", model.dim("vocab"), 0));
  if (next_sentence) {
    add_linear(block.parameters, "bert.pooler.dense", hidden, hidden, -1, true);
    add_linear(block.parameters, "cls.seq_relationship", 2, hidden, -1, true);
  }
  return block;
}

}  // namespace

ModelSpec read_bert(const Settings& settings) {
  settings.allow_only(
      with_run_keys({"hidden", "layers", "heads", "ffn", "seq", "vocab", "tied", "max_positions", "token_types", "head", "norm_eps"}));
  ModelSpec model;
  model.arch = "bert";
  auto& dims = model.dims;
  for (const char* key : {"hidden", "layers", "heads", "seq", "vocab"}) dims[key] = static_cast<double>(settings.count(key));
  settings.require_divides("heads", model.dim("heads"), "hidden", model.dim("hidden"));
  dims["kv_heads"] = dims["heads"];
  dims["head_dim"] = dims["hidden"] / dims["heads"];
  dims["ffn"] = static_cast<double>(settings.count("ffn", 4 * model.dim("hidden")));
  dims["positions"] = static_cast<double>(settings.count("max_positions", std::max<std::int64_t>(512, model.dim("seq"))));
  if (dims["positions"] < dims["seq"])
    throw settings.at("max_positions").error(text("found ", model.dim("positions"), " for samples of ", model.dim("seq")), "at least seq");
  dims["token_types"] = static_cast<double>(settings.count("token_types", 2));
  dims["norm_eps"] = settings.real("norm_eps", 1e-12);
  dims["gated"] = dims["rotary"] = dims["causal"] = dims["head_norm"] = 0;
  for (const char* key : {"embedding_norm", "head_transform", "layer_norm", "post_norm", "gelu", "gelu_exact", "biases"}) dims[key] = 1;
  read_run_keys(settings, dims, "tessera", 0.1);
  model.tied_embeddings = settings.flag("tied", true);
  const bool next_sentence = settings.choice("head", {"mlm", "pretraining"}, "mlm") == "pretraining";
  if (next_sentence) dims["next_sentence"] = 1;
  model.repeats = {{embedding(model), 1}, {layer(model), static_cast<int>(model.dim("layers"))}, {head(model, next_sentence), 1}};
  return model;
}

}  // namespace tessera::model
