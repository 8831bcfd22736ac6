// internal: a tokenizer.json, checked and taken apart; and writing one.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/added_tokens.hpp"
#include "data/bpe_model.hpp"
#include "data/normalizer.hpp"
#include "data/pre_tokenizer.hpp"
#include "data/word_piece.hpp"

namespace tessera::data {

struct HfTokenizerFile {
  struct Token {
    std::string bytes;  // what it adds to a text; empty for ids without a token
    bool special = false;
  };
  std::vector<Token> tokens;  // by id
  std::vector<AddedToken> added;
  std::unique_ptr<Normalizer> normalizer;  // may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<BpeModel> model;  // or
  std::unique_ptr<WordPieceModel> word_piece;
  bool strip_first_space = false;  // on decoding
};

// Throws corrupt or invalid_config with `name` as the file.
HfTokenizerFile read_hf_tokenizer(const std::string& content, const std::string& name);

// A tokenizer.json for byte-level BPE. `tokens` by id in the byte alphabet, `end_of_text` one of them or the next id.
std::string write_hf_tokenizer(const std::vector<std::string>& tokens, const std::vector<std::pair<std::uint32_t, std::uint32_t>>& merges,
                               std::uint32_t end_of_text, bool cut_words);

inline constexpr const char* kEndOfText = "<|endoftext|>";

}  // namespace tessera::data
