// Encoders that feed a trunk: pictures and sounds beside text (Liu et al. 2023, arXiv 2304.08485). Each encoder loses its head; a
// linear map brings its positions to the trunk's width, where they stand in the trunk's sequence.
#include <algorithm>
#include <numeric>

#include "model/families.hpp"
#include "model/tensor_flow.hpp"

namespace tessera::model {
namespace {

void prefix_names(BlockSpec& block, const std::string& prefix) {
  block.name = prefix + block.name;
  for (ParameterSpec& parameter : block.parameters) {
    parameter.name = prefix + parameter.name;
    if (!parameter.tied_to.empty()) parameter.tied_to = prefix + parameter.tied_to;
  }
}

BlockSpec projector(const std::string& encoder, const TensorSpec& from, std::int64_t hidden, const std::map<std::string, double>& dims) {
  BlockSpec block{"projector", encoder + ".projector", {}, {}, {from}, {{encoder, {from.shape[0], hidden}}}};
  block.dims = {
      {"seq", static_cast<double>(from.shape[0])}, {"in", static_cast<double>(from.shape[1])}, {"hidden", static_cast<double>(hidden)}};
  if (dims.contains("autograd")) block.dims["autograd"] = 1;
  add_linear(block.parameters, encoder + ".projector", hidden, from.shape[1], -1, true);
  return block;
}

// Whether each block reads what the one before it makes, and nothing else.
bool is_one_row(const ModelSpec& model) {
  const std::vector<BlockFlow> flow = tensor_flow(model);
  return std::all_of(flow.begin(), flow.end(), [](const BlockFlow& block) { return block.before.size() <= 1; });
}

// Appends the encoder to the model and says what it passes to the trunk.
TensorSpec add_encoder(ModelSpec& model, const std::string& name, const ConfigNode& section, const ModelSpec& trunk) {
  ModelSpec encoder = read_model(section);
  if (!is_one_row(encoder)) throw section.error("'" + name + "' is no single row of blocks", "an encoder such as vit or bert");
  encoder.repeats.pop_back();
  const TensorSpec last = encoder.repeats.back().block.outputs.front();
  if (last.shape.size() != 2) throw section.error("'" + name + "' ends in no sequence of vectors", "an encoder such as vit or bert");
  for (Repeat& repeat : encoder.repeats) {
    prefix_names(repeat.block, name + ".");
    model.repeats.push_back(std::move(repeat));
  }
  BlockSpec map = projector(name, last, trunk.dim("hidden"), encoder.dims);
  const TensorSpec passed = map.outputs.front();
  model.repeats.push_back({std::move(map), 1});
  for (const char* key : {"heads", "kv_heads", "ffn", "vocab"})
    model.dims[key] = static_cast<double>(std::gcd(model.dim(key), encoder.dim(key)));
  return passed;
}

}  // namespace

ModelSpec read_branches(const ConfigNode& node) {
  node.allow_only({"arch", "encoders", "trunk"});
  ModelSpec trunk = read_model(node.at("trunk"));
  if (!is_one_row(trunk)) throw node.at("trunk").error("the trunk is no single row of blocks", "a model such as llama or gpt");
  ModelSpec model;
  model.arch = "branches";
  model.dims = trunk.dims;
  model.tied_embeddings = trunk.tied_embeddings;
  std::int64_t fed = 0;
  const ConfigNode encoders = node.at("encoders");
  for (const std::string& name : encoders.keys()) {
    const TensorSpec passed = add_encoder(model, name, encoders.at(name), trunk);
    trunk.repeats.front().block.inputs.push_back(passed);
    fed += passed.shape[0];
  }
  if (fed == 0) throw encoders.error("there is no encoder", "{NAME: {arch: ...}}");
  if (fed >= trunk.dim("seq"))
    throw node.at("trunk").error(text("a sequence of ", trunk.dim("seq"), " has no place for ", fed, " positions of the encoders"),
                                 text("a seq above ", fed));
  for (Repeat& repeat : trunk.repeats) model.repeats.push_back(std::move(repeat));
  return model;
}

}  // namespace tessera::model
