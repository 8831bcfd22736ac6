// Internal: Hugging Face's JSON files beside the weights, without tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/hugging_face.hpp"
#include "model/model.hpp"

namespace tessera::checkpoint {

// The special tokens of a tokenizer's folder; negative ids are unknown.
struct SpecialTokens {
  std::int64_t bos = -1;
  std::int64_t eos = -1;
  std::string bos_token;
  std::string eos_token;
};
// From tokenizer_config.json beside `tokenizer` where there is one, else by the names that models use. A SentencePiece .model has none
// here.
SpecialTokens special_tokens(const std::filesystem::path& tokenizer);

// The texts of the files. kExportMark stands in config.json as a key, so that an earlier export can be told from anything else.
inline constexpr const char* kExportMark = "tessera_model_fingerprint";
std::string config_json(const model::ModelSpec& model, const SpecialTokens& tokens, ExportType type);
std::string generation_config_json(const SpecialTokens& tokens);
std::string tokenizer_config_json(const model::ModelSpec& model, const SpecialTokens& tokens, bool sentencepiece);

}  // namespace tessera::checkpoint
