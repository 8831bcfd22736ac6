// internal: tokens that are found in a text as they stand, before it is cut into words.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/trie.hpp"

namespace tessera::data {

struct AddedToken {
  std::uint32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no letter or digit touches it
  bool strip_left = false;   // takes the white space before it
  bool strip_right = false;  // and behind it
  bool normalized = true;    // looked for in the normalized text
  bool special = false;
};

// Finds the longest token at the leftmost place, and so on.
class AddedTokenFinder {
 public:
  void add(const AddedToken& token);
  bool empty() const { return tokens_.empty(); }
  // Calls visit(part, id) for every part of `text` in order; id is none for parts that are plain text.
  void split(std::string_view text, const std::function<void(std::string_view part, std::optional<std::uint32_t> id)>& visit) const;

 private:
  std::size_t next_candidate(std::string_view text, std::size_t from) const;

  std::vector<AddedToken> tokens_;
  Trie trie_;
  std::optional<char> only_first_;  // the first byte of all tokens when they share it
};

}  // namespace tessera::data
