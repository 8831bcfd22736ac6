#include <map>

#include "model/families.hpp"
#include "model/plugin.hpp"

namespace tessera::model {
namespace {

std::map<std::string, Reader>& readers() {
  static std::map<std::string, Reader> known = [] {
    std::map<std::string, Reader> out = {
        {"gpt", read_gpt},       {"bert", read_bert},           {"t5", read_t5},         {"vit", read_vit}, {"dlrm", read_dlrm},
        {"deepfm", read_deepfm}, {"wide_deep", read_wide_deep}, {"dcn_v2", read_dcn_v2}, {"din", read_din}};
    const auto add = [&](std::initializer_list<const char*> names, ModelSpec (*reader)(const Settings&, const std::string&)) {
      for (const std::string name : names) out[name] = [=](const Settings& settings) { return reader(settings, name); };
    };
    add({"llama", "pangu", "mixtral", "qwen_moe", "deepseek"}, read_decoder);
    add({"resnet", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152"}, read_resnet);
    add({"vgg", "vgg11", "vgg13", "vgg16", "vgg19"}, read_vgg);
    return out;
  }();
  return known;
}

// "arch" may stand in the section, or behind a preset or an imported file.
ModelSpec build_family(const Settings& settings) {
  std::vector<std::string> names;
  for (const auto& [name, reader] : readers()) names.push_back(name);
  names.push_back("branches");
  return readers().at(settings.at("arch").as_choice(names))(settings);
}

// What a family throws may come of what stands in place of a bad value: the bad values are said first.
ModelSpec read_family(const Settings& settings) {
  std::optional<ModelSpec> model;
  try {
    model = build_family(settings);
  } catch (const Error&) {
    settings.finish();
    throw;
  }
  settings.finish();
  return *std::move(model);
}

// What no machine could hold or no 64-bit count of bytes could say is a slip of the hand.
void check_size(const ConfigNode& node, const ModelSpec& model) {
  constexpr double kMostParameters = 1e16;
  const std::pair<const char*, double> limits[] = {
      {"layers", 1 << 20}, {"seq", 1 << 26}, {"decoder_seq", 1 << 26}, {"image", 1 << 15}, {"heads", 1 << 20}};
  for (const auto& [key, most] : limits)
    if (const auto found = model.dims.find(key); found != model.dims.end() && found->second > most)
      throw(node.has(key) ? node.at(key) : node).error(text(key, " is ", found->second), text("at most ", most));
  double parameters = 0;
  for (const Repeat& repeat : model.repeats)
    for (const ParameterSpec& parameter : repeat.block.parameters) {
      double count = repeat.count;
      for (const std::int64_t extent : parameter.shape) count *= static_cast<double>(extent);
      parameters += count;
    }
  if (parameters > kMostParameters)
    throw node.error(text("this model has ", count_text(parameters), " parameters"), text("at most ", kMostParameters));
}

ModelSpec read_any(const ConfigNode& node) {
  if (node.has("plugin")) return read_plugin(node);
  const bool preset = node.has("preset");
  const bool imported = node.has("hf");
  if (node.has("arch") + preset + imported > 1) throw node.error("'arch', 'preset' and 'hf' exclude each other", "one of them");
  if (const auto arch = node.find("arch"); arch && arch->is_scalar() && arch->as_string() == "branches") return read_branches(node);
  if (preset)
    return read_family(Settings(node, ConfigNode::parse(preset_yaml(node.at("preset")), "preset " + node.at("preset").as_string())));
  if (imported) return read_family(Settings(node, ConfigNode::parse(hugging_face_yaml(node.at("hf")), node.at("hf").as_string())));
  return read_family(Settings(node));
}

}  // namespace

void register_arch(const std::string& arch, Reader reader) {
  if (arch == "branches" || !readers().emplace(arch, std::move(reader)).second)
    throw Error(ErrorCode::invalid_config, text("there is an arch \"", arch, "\" already"), {}, "a name of its own");
}

ModelSpec read_registered(const ConfigNode& node) { return read_family(Settings(node)); }

ModelSpec read_model(const ConfigNode& node) {
  ModelSpec model = read_any(node);
  check_size(node, model);
  return model;
}

}  // namespace tessera::model
