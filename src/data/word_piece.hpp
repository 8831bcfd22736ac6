// internal: the longest tokens of which a word is made, one behind the other (WordPiece, as BERT's tokenizers have it).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe_model.hpp"

namespace tessera::data {

class WordPieceModel {
 public:
  struct Options {
    std::string prefix = "##";   // of tokens that do not begin a word
    std::int64_t longest = 100;  // characters of a word; a longer one is unknown
    std::uint32_t unknown = 0;
  };

  WordPieceModel(TokenIds vocabulary, Options options) : vocabulary_(std::move(vocabulary)), options_(std::move(options)) {}

  // Appends the ids of one word, which is not empty; of one that no tokens make the unknown token's.
  void encode(std::string_view word, std::vector<std::uint32_t>& out) const;

 private:
  TokenIds vocabulary_;
  Options options_;
};

}  // namespace tessera::data
