// internal: the normalization that a SentencePiece model carries with it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/trie.hpp"

namespace tessera::data {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, stands for a space inside pieces

struct SentencePieceRules {
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;
};

// Replaces the longest prefix by rule, character by character (Kudo and Richardson 2018, section 3.2). Immutable.
class SentencePieceNormalizer {
 public:
  // `character_map` as in the model file; empty: the identity. `untouched` are texts that pass as they are; must outlive this.
  // Throws corrupt when the map's sizes do not fit together.
  SentencePieceNormalizer(std::string character_map, SentencePieceRules rules, const Trie& untouched, const std::string& file);
  std::string apply(std::string_view text) const;
  const SentencePieceRules& rules() const { return rules_; }

 private:
  struct Step {
    std::string_view replacement;
    std::size_t consumed;
  };
  Step next(std::string_view text) const;

  std::vector<std::uint32_t> units_;  // a double array as Darts-clone lays it out
  std::string replacements_;
  SentencePieceRules rules_;
  const Trie& untouched_;
};

}  // namespace tessera::data
