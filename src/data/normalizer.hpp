// internal: the `normalizer` of a tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <unicode/uniset.h>

#include <nlohmann/json_fwd.hpp>

namespace tessera::data {

// Immutable; safe to use from several threads.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual std::string apply(std::string_view text) const = 0;
};

// Null for JSON null. Supports NFC, NFD, NFKC, NFKD, Prepend, Replace of a string, BertNormalizer, and sequences of them.
// Throws invalid_config for any other type, with its name; `file` is for messages.
std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json& description, const std::string& file);

// Characters as BERT's tokenizers tell them apart: by their categories in Unicode 8, as the `tokenizers` package does for them.
enum class BertCategory { control, mark, punctuation };
const icu::UnicodeSet& characters_of(BertCategory category);

}  // namespace tessera::data
