// Paths in a train.yaml.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/config.hpp"

namespace tessera::model {

// A train.yaml with `key=value` overrides, or a Hugging Face config.json as one. Throws not_found, io, invalid_config.
ConfigNode load_yaml(const std::filesystem::path& path, const std::vector<std::string>& overrides);
// What the value names, relative to the folder of its file, or to the current folder where an override set it.
std::filesystem::path path_of(const ConfigNode& node);
// The weights that a value of train.init names: a folder or a file, as path_of says, or a run by its name where there is none such.
std::filesystem::path init_of(const ConfigNode& node);
// The path as a YAML value, whatever characters it holds.
std::string quoted(const std::filesystem::path& path);

}  // namespace tessera::model
