// The vision transformer (Dosovitskiy et al. 2021) with a linear classifier, named as Hugging Face's
// ViTForImageClassification names it.
#include "model/families.hpp"

namespace tessera::model {
namespace {

BlockSpec patches(const ModelSpec& model) {
  const std::int64_t hidden = model.dim("hidden");
  const std::int64_t patch = model.dim("patch");
  BlockSpec block{"patch_embedding", "patches", model.dims, {}, {}, {{"hidden", {model.dim("seq"), hidden}}}};
  block.parameters.push_back({"vit.embeddings.cls_token", {1, 1, hidden}, -1, normal(), false, {}});
  block.parameters.push_back({"vit.embeddings.position_embeddings", {1, model.dim("seq"), hidden}, -1, normal(), false, {}});
  block.parameters.push_back(
      {"vit.embeddings.patch_embeddings.projection.weight", {hidden, model.dim("channels"), patch, patch}, -1, normal(), true, {}});
  block.parameters.push_back(bias("vit.embeddings.patch_embeddings.projection.bias", hidden));
  return block;
}

BlockSpec layer(const ModelSpec& model) {
  const std::int64_t hidden = model.dim("hidden");
  const std::int64_t ffn = model.dim("ffn");
  const std::string prefix = "vit.layers.{}.";
  BlockSpec block;
  block.kind = "encoder_layer";
  block.name = "layers.{}";
  block.dims = model.dims;
  add_layer_norm(block.parameters, prefix + "layernorm_before", hidden);
  for (const char* name : {"q_proj", "k_proj", "v_proj"})
    add_linear(block.parameters, prefix + "attention." + name, hidden, hidden, 0, true);
  add_linear(block.parameters, prefix + "attention.o_proj", hidden, hidden, 1, true);
  add_layer_norm(block.parameters, prefix + "layernorm_after", hidden);
  add_linear(block.parameters, prefix + "mlp.fc1", ffn, hidden, 0, true);
  add_linear(block.parameters, prefix + "mlp.fc2", hidden, ffn, 1, true);
  block.inputs = {{"hidden", {model.dim("seq"), hidden}}};
  block.outputs = block.inputs;
  return block;
}

BlockSpec classifier(const ModelSpec& model) {
  const std::int64_t hidden = model.dim("hidden");
  BlockSpec block{"classifier", "classifier", model.dims, {}, {{"hidden", {model.dim("seq"), hidden}}}, {{"loss", {}}}};
  add_layer_norm(block.parameters, "vit.layernorm", hidden);
  add_linear(block.parameters, "classifier", model.dim("classes"), hidden, -1, true);
  return block;
}

}  // namespace

ModelSpec read_vit(const Settings& settings) {
  settings.allow_only(with_run_keys({"hidden", "layers", "heads", "ffn", "image", "patch", "channels", "classes", "norm_eps"}));
  ModelSpec model;
  model.arch = "vit";
  auto& dims = model.dims;
  for (const char* key : {"hidden", "layers", "heads"}) dims[key] = static_cast<double>(settings.count(key));
  settings.require_divides("heads", model.dim("heads"), "hidden", model.dim("hidden"));
  dims["kv_heads"] = dims["heads"];
  dims["head_dim"] = dims["hidden"] / dims["heads"];
  dims["ffn"] = static_cast<double>(settings.count("ffn", 4 * model.dim("hidden")));
  dims["image"] = static_cast<double>(settings.count("image", 224));
  dims["patch"] = static_cast<double>(settings.count("patch", 16));
  if (model.dim("image") % model.dim("patch") != 0)
    throw settings.at(settings.has("patch") ? "patch" : "image")
        .error(text("patches of ", model.dim("patch"), " do not tile an image of ", model.dim("image")));
  dims["channels"] = static_cast<double>(settings.count("channels", 3));
  dims["classes"] = static_cast<double>(settings.count("classes", 1000));
  const std::int64_t side = model.dim("image") / model.dim("patch");
  dims["seq"] = static_cast<double>(side * side + 1);  // and the class token
  dims["gated"] = dims["rotary"] = dims["causal"] = 0;
  dims["norm_eps"] = settings.real("norm_eps", 1e-6);
  read_run_keys(settings, dims, "autograd", 0);
  fill_dims(dims);
  model.repeats = {{patches(model), 1}, {layer(model), static_cast<int>(model.dim("layers"))}, {classifier(model), 1}};
  return model;
}

}  // namespace tessera::model
