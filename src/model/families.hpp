// Internal: one reader for each family of architectures. `arch` is the name in the YAML.
#pragma once

#include "model/settings.hpp"

namespace tessera::model {

ModelSpec read_decoder(const Settings& settings, const std::string& arch);  // llama, pangu, mixtral, qwen_moe, deepseek
ModelSpec read_gpt(const Settings& settings);
ModelSpec read_bert(const Settings& settings);
ModelSpec read_t5(const Settings& settings);
ModelSpec read_vit(const Settings& settings);
ModelSpec read_resnet(const Settings& settings, const std::string& arch);  // resnet (with `depth`), resnet18 ... resnet152
ModelSpec read_vgg(const Settings& settings, const std::string& arch);     // vgg (with `depth`), vgg11 ... vgg19
ModelSpec read_dlrm(const Settings& settings);
ModelSpec read_deepfm(const Settings& settings);
ModelSpec read_wide_deep(const Settings& settings);
ModelSpec read_dcn_v2(const Settings& settings);
ModelSpec read_din(const Settings& settings);
ModelSpec read_branches(const ConfigNode& node);  // encoders that feed a trunk

// The text of a `model:` section for a preset; throws when there is none of this name.
std::string preset_yaml(const ConfigNode& name);
// The same, for planning, for a Hugging Face config.json or its folder.
std::string hugging_face_yaml(const ConfigNode& path);

}  // namespace tessera::model
