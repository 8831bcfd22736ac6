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

// Matrices of weights in FP8 have a scale for each block of so many rows and columns.
inline constexpr std::int64_t kFp8Block = 128;

// What a folder's weights hold beside what its model asks for.
struct HuggingFaceWeights {
  bool fp8 = false;  // some matrices are in FP8 (E4M3), and each has scales of its blocks beside it
  // The layers numbered from `layers` on, `further_layers` of them, predict tokens beyond the next one (DeepSeek-V3's multi-token
  // prediction). Nothing here computes them.
  std::int64_t layers = 0;
  std::int64_t further_layers = 0;
};

// `config_json` must be one that hugging_face_yaml accepts for computing. Throws as it does.
HuggingFaceWeights hugging_face_weights(const std::filesystem::path& config_json);

}  // namespace tessera::model
