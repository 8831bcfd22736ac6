#include "data/sentencepiece_normalizer.hpp"

#include <cstring>

#include "base/error.hpp"
#include "data/in_file.hpp"
#include "data/utf8.hpp"

namespace tessera::data {
namespace {

// The parts of one unit of the double array.
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) == 1; }
std::uint32_t value(std::uint32_t unit) { return unit & 0x7FFFFFFFu; }
std::uint32_t label(std::uint32_t unit) { return unit & 0x800000FFu; }
std::uint32_t offset(std::uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

// The reference looks at no more than so many prefixes of one place.
constexpr int kMostPrefixes = 32;

}  // namespace

SentencePieceNormalizer::SentencePieceNormalizer(std::string character_map, SentencePieceRules rules, const Trie& untouched,
                                                 const std::string& file)
    : rules_(rules), untouched_(untouched) {
  if (character_map.empty()) return;
  std::uint32_t trie_bytes = 0;
  if (character_map.size() > sizeof trie_bytes) std::memcpy(&trie_bytes, character_map.data(), sizeof trie_bytes);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > character_map.size() - sizeof trie_bytes) {
    throw Error(ErrorCode::corrupt, "the normalization table of this SentencePiece model is damaged", in_file(file),
                "a table as large as it says", "fetch the model again");
  }
  units_.resize(trie_bytes / 4);
  std::memcpy(units_.data(), character_map.data() + sizeof trie_bytes, trie_bytes);
  replacements_ = character_map.substr(sizeof trie_bytes + trie_bytes);
}

SentencePieceNormalizer::Step SentencePieceNormalizer::next(std::string_view text) const {
  if (const auto match = untouched_.longest(text)) return {text.substr(0, match->length), match->length};
  std::size_t best_length = 0, best_value = 0;
  if (!units_.empty()) {
    std::size_t node = offset(units_[0]);
    int found = 0;
    for (std::size_t index = 0; index < text.size(); ++index) {
      node ^= static_cast<unsigned char>(text[index]);
      if (node >= units_.size() || label(units_[node]) != static_cast<unsigned char>(text[index])) break;
      const std::uint32_t unit = units_[node];
      node ^= offset(unit);
      if (!has_leaf(unit) || node >= units_.size()) continue;
      best_length = index + 1;
      best_value = value(units_[node]);
      if (++found == kMostPrefixes) break;
    }
  }
  if (best_length == 0) {
    const std::size_t length = utf8_length(text[0]);
    return {text.substr(0, length), length};
  }
  if (best_value >= replacements_.size()) return {{}, best_length};
  const char* begin = replacements_.data() + best_value;
  return {{begin, ::strnlen(begin, replacements_.size() - best_value)}, best_length};
}

std::string SentencePieceNormalizer::apply(std::string_view text) const {
  const std::string_view space = rules_.escape_whitespaces ? kSpaceMark : std::string_view(" ");
  if (rules_.remove_extra_whitespaces) {
    while (!text.empty()) {
      const Step step = next(text);
      if (step.replacement != " ") break;
      text.remove_prefix(step.consumed);
    }
  }
  std::string out;
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 2);
  if (rules_.add_dummy_prefix && !rules_.whitespace_as_suffix) out += space;
  bool after_space = rules_.remove_extra_whitespaces;
  while (!text.empty()) {
    Step step = next(text);
    text.remove_prefix(step.consumed);
    while (after_space && step.replacement.starts_with(' ')) step.replacement.remove_prefix(1);
    if (!step.replacement.empty()) {
      for (char byte : step.replacement) {
        if (byte == ' ') {
          out += space;
        } else {
          out.push_back(byte);
        }
      }
      after_space = rules_.remove_extra_whitespaces && step.replacement.ends_with(' ');
    }
    if (!rules_.remove_extra_whitespaces) after_space = false;
  }
  if (rules_.remove_extra_whitespaces) {
    while (out.ends_with(space)) out.resize(out.size() - space.size());
  }
  if (rules_.add_dummy_prefix && rules_.whitespace_as_suffix) out += space;
  return out;
}

}  // namespace tessera::data
