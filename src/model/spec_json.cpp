#include "model/spec_json.hpp"

#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace tessera::model {
namespace {

using nlohmann::json;

json to_json(const std::vector<TensorSpec>& tensors) {
  json out = json::array();
  for (const TensorSpec& tensor : tensors) out.push_back({{"name", tensor.name}, {"shape", tensor.shape}});
  return out;
}

json to_json(const ParameterSpec& p) {
  return {{"name", p.name},
          {"shape", p.shape},
          {"split_dim", p.split_dim},
          {"init", {{"kind", p.init.kind}, {"scale", p.init.scale}}},
          {"decay", p.decay},
          {"tied_to", p.tied_to},
          {"expert_dim", p.expert_dim},
          {"sparse", p.sparse},
          {"stacked", p.stacked},
          {"buffer_momentum", p.buffer_momentum},
          {"sign_rate", p.sign_rate}};
}

json to_json(const MeasuredCost& cost) {
  return {{"forward", cost.forward.value},
          {"backward", cost.backward.value},
          {"kept", cost.kept.value},
          {"forward_workspace", cost.forward_workspace.value},
          {"backward_workspace", cost.backward_workspace.value}};
}

json to_json(const BlockSpec& block) {
  json out = {{"kind", block.kind},
              {"name", block.name},
              {"dims", block.dims},
              {"parameters", json::array()},
              {"inputs", to_json(block.inputs)},
              {"outputs", to_json(block.outputs)}};
  for (const ParameterSpec& parameter : block.parameters) out["parameters"].push_back(to_json(parameter));
  if (block.measured) out["measured"] = to_json(*block.measured);
  return out;
}

std::vector<TensorSpec> tensors_from(const json& from) {
  std::vector<TensorSpec> out;
  for (const json& tensor : from) out.push_back({tensor.at("name"), tensor.at("shape")});
  return out;
}

ParameterSpec parameter_from(const json& from) {
  ParameterSpec out;
  out.name = from.at("name");
  out.shape = from.at("shape").get<std::vector<std::int64_t>>();
  out.split_dim = from.at("split_dim");
  out.init = {from.at("init").at("kind"), from.at("init").at("scale")};
  out.decay = from.at("decay");
  out.tied_to = from.at("tied_to");
  out.expert_dim = from.at("expert_dim");
  out.sparse = from.at("sparse");
  out.stacked = from.at("stacked");
  out.buffer_momentum = from.at("buffer_momentum");
  out.sign_rate = from.at("sign_rate");
  return out;
}

BlockSpec block_from(const json& from) {
  BlockSpec out;
  out.kind = from.at("kind");
  out.name = from.at("name");
  out.dims = from.at("dims").get<std::map<std::string, double>>();
  for (const json& parameter : from.at("parameters")) out.parameters.push_back(parameter_from(parameter));
  out.inputs = tensors_from(from.at("inputs"));
  out.outputs = tensors_from(from.at("outputs"));
  if (from.contains("measured")) {
    const json& cost = from.at("measured");
    const auto bytes = [&](const char* key) { return Bytes(cost.at(key).get<std::int64_t>()); };
    out.measured = MeasuredCost{Flops(cost.at("forward").get<double>()), Flops(cost.at("backward").get<double>()), bytes("kept"),
                                bytes("forward_workspace"), bytes("backward_workspace")};
  }
  return out;
}

}  // namespace

std::string to_json(const ModelSpec& model) {
  json out = {{"arch", model.arch},
              {"plugin", model.plugin},
              {"dims", model.dims},
              {"tied_embeddings", model.tied_embeddings},
              {"repeats", json::array()}};
  for (const Repeat& repeat : model.repeats)
    out["repeats"].push_back({{"block", to_json(repeat.block)}, {"count", repeat.count}, {"first_index", repeat.first_index}});
  return out.dump();
}

ModelSpec model_from_json(const std::string& text_of_model, const std::string& file) {
  try {
    const json from = json::parse(text_of_model);
    ModelSpec out;
    out.arch = from.at("arch");
    out.plugin = from.at("plugin");
    out.dims = from.at("dims").get<std::map<std::string, double>>();
    out.tied_embeddings = from.at("tied_embeddings");
    for (const json& repeat : from.at("repeats"))
      out.repeats.push_back({block_from(repeat.at("block")), repeat.at("count"), repeat.at("first_index")});
    return out;
  } catch (const json::exception& error) {
    throw Error(ErrorCode::corrupt, text("not the description of a model: ", error.what()), {file, 0, 0, -1, {}});
  }
}

}  // namespace tessera::model
