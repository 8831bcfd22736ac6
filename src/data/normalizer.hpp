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

// All characters of a general category ("P": punctuation) as BERT's tokenizers know them: as of Unicode 8, as the `tokenizers` package
// has it for them.
const icu::UnicodeSet& bert_category(const char* category);

}  // namespace tessera::data
