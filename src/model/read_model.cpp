#include "model/families.hpp"

namespace tessera::model {
namespace {

// "arch" may stand in the section, or behind a preset or an imported file.
ModelSpec read_family(const Settings& settings) {
  const std::string arch = settings.at("arch").as_choice(
      {"llama",    "gpt",       "pangu",     "bert", "t5",    "mixtral", "qwen_moe", "deepseek", "vit",  "resnet", "resnet18", "resnet34",
       "resnet50", "resnet101", "resnet152", "vgg",  "vgg11", "vgg13",   "vgg16",    "vgg19",    "dlrm", "deepfm", "branches"});
  if (arch == "gpt") return read_gpt(settings);
  if (arch == "bert") return read_bert(settings);
  if (arch == "t5") return read_t5(settings);
  if (arch == "vit") return read_vit(settings);
  if (arch.starts_with("resnet")) return read_resnet(settings, arch);
  if (arch.starts_with("vgg")) return read_vgg(settings, arch);
  if (arch == "dlrm") return read_dlrm(settings);
  if (arch == "deepfm") return read_deepfm(settings);
  return read_decoder(settings, arch);
}

}  // namespace

ModelSpec read_model(const ConfigNode& node) {
  const bool preset = node.has("preset");
  const bool imported = node.has("hf");
  if (node.has("arch") + preset + imported > 1) throw node.error("'arch', 'preset' and 'hf' exclude each other", "one of them");
  if (const auto arch = node.find("arch"); arch && arch->is_scalar() && arch->as_string() == "branches") return read_branches(node);
  if (preset)
    return read_family(Settings(node, ConfigNode::parse(preset_yaml(node.at("preset")), "preset " + node.at("preset").as_string())));
  if (imported) return read_family(Settings(node, ConfigNode::parse(hugging_face_yaml(node.at("hf")), node.at("hf").as_string())));
  return read_family(Settings(node));
}

}  // namespace tessera::model
