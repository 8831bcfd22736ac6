// BERT (Devlin et al. 2019) with its masked-language-model head, or with one that tells a text's class, named as Hugging Face's
// BertForMaskedLM, BertForPreTraining and BertForSequenceClassification name it.
#include "model/families.hpp"

namespace tessera::model {
namespace {

const std::string kLayer = "bert.encoder.layer.{}.";

// Parameters in the order in which nn/ takes them.
void add_attention_half(BlockSpec& block) {
  const std::int64_t hidden = block.dim("hidden");
  for (const char* name : {"query", "key", "value"})
    add_linear(block.parameters, kLayer + "attention.self." + name, hidden, hidden, 0, false);
  for (const char* name : {"query", "key", "value"})
    block.parameters.push_back(bias(kLayer + "attention.self." + name + ".bias", hidden, 0));
  add_linear(block.parameters, kLayer + "attention.output.dense", hidden, hidden, 1, true);
  add_layer_norm(block.parameters, kLayer + "attention.output.LayerNorm", hidden);
}

void add_feed_forward_half(BlockSpec& block) {
  const std::int64_t hidden = block.dim("hidden"), ffn = block.dim("ffn");
  add_linear(block.parameters, kLayer + "intermediate.dense", ffn, hidden, 0, true);
  add_linear(block.parameters, kLayer + "output.dense", hidden, ffn, 1, true);
  add_layer_norm(block.parameters, kLayer + "output.LayerNorm", hidden);
}

BlockSpec layer(const ModelSpec& model, const std::string& kind, const std::string& name, auto... adds) {
  const TensorSpec hidden{"hidden", {model.dim("seq"), model.dim("hidden")}};
  BlockSpec block{kind, name, model.dims, {}, {hidden}, {hidden}};
  (adds(block), ...);
  return block;
}

// All layers, each as one block or as two.
std::vector<Repeat> layers(const ModelSpec& model, bool split) {
  const int count = static_cast<int>(model.dim("layers"));
  if (!split) return {{layer(model, "encoder_layer", "layer.{}", add_attention_half, add_feed_forward_half), count}};
  std::vector<Repeat> out;
  for (int i = 0; i < count; ++i) {
    out.push_back({layer(model, "attention_sublayer", "layer.{}.attention", add_attention_half), 1, i});
    out.push_back({layer(model, "feed_forward_sublayer", "layer.{}.feed_forward", add_feed_forward_half), 1, i});
  }
  return out;
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

BlockSpec classifier(const ModelSpec& model) {
  const std::int64_t hidden = model.dim("hidden");
  BlockSpec block{"classifier", "classifier", model.dims, {}, {{"hidden", {model.dim("seq"), hidden}}}, {{"loss", {}}}};
  add_linear(block.parameters, "bert.pooler.dense", hidden, hidden, -1, true);
  add_linear(block.parameters, "classifier", model.dim("classes"), hidden, -1, true);
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
  settings.allow_only(with_run_keys({"hidden", "layers", "heads", "ffn", "seq", "vocab", "tied", "max_positions", "token_types", "head",
                                     "classes", "norm_eps", "split_layers"}));
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
  const std::string kind = settings.choice("head", {"mlm", "pretraining", "classification"}, "mlm");
  if (kind == "pretraining") dims["next_sentence"] = 1;
  if (kind == "classification")
    dims["classes"] = static_cast<double>(settings.count("classes", 2));
  else if (settings.has("classes"))
    throw settings.at("classes").error("head: " + kind + " tells no classes", "head: classification beside it");
  else
    model.tied_embeddings = settings.flag("tied", true);
  model.repeats = layers(model, settings.flag("split_layers", false));
  model.repeats.insert(model.repeats.begin(), {embedding(model), 1});
  model.repeats.push_back({kind == "classification" ? classifier(model) : head(model, kind == "pretraining"), 1});
  return model;
}

}  // namespace tessera::model
