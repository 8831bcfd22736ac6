// A Hugging Face config.json as the `model:` section of a train.yaml: "{arch: llama, hidden: 32, ...}".
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

namespace tessera::model {

// planning: what changes neither shapes nor work is passed over, with a warning where it changes results. computing: everything that
// Tessera would compute otherwise is refused by name.
enum class ImportFor { planning, computing };

// `longest`: the most positions that a sample may have. Throws not_found, or invalid_config at the key that cannot be expressed.
std::string hugging_face_yaml(const std::filesystem::path& config_json, ImportFor use,
                              std::int64_t longest = std::numeric_limits<std::int32_t>::max());

}  // namespace tessera::model
