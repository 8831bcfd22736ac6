// internal: byte-pair merges of one word.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/flat_map.hpp"

namespace tessera::data {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, std::uint32_t, StringHash, std::equal_to<>>;

// Words that were encoded before; direct-mapped, a fixed 1 MiB. For one thread.
class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 22;
  static constexpr std::size_t kMostIds = 10;
  struct Entry {
    std::uint8_t length = 0;
    std::uint8_t count = 0;
    char word[kLongestWord];
    std::uint32_t ids[kMostIds];
  };
  WordCache() : entries_(1u << 14) {}
  // The place where `word` is or would be.
  Entry& place(std::string_view word);

 private:
  std::vector<Entry> entries_;
};

class BpeModel {
 public:
  static constexpr std::uint32_t kNoId = ~0u;

  struct Options {
    bool byte_level = true;      // words are bytes; otherwise words are characters and tokens are as written
    bool ignore_merges = false;  // a word that is a token is that token
    bool byte_fallback = false;  // characters: an unknown one becomes <0xXX> tokens
    bool fuse_unknown = false;
    std::uint32_t unknown = kNoId;  // kNoId: what is unknown is dropped
  };

  // Working memory for one thread.
  struct Scratch {
    WordCache cache;
    std::vector<std::uint32_t> ids, ranks, merged;
    std::vector<std::int32_t> previous, next;
    std::vector<std::uint64_t> heap;
  };

  // Keys are the strings that words are made of: bytes when byte_level.
  BpeModel(TokenIds vocabulary, Options options);
  // The pair's rank is the number of pairs added before; a later equal pair replaces the earlier one.
  void add_merge(std::uint32_t left, std::uint32_t right, std::uint32_t merged);

  // Appends the ids of one word, which is not empty.
  void encode(std::string_view word, Scratch& scratch, std::vector<std::uint32_t>& out) const;
  const TokenIds& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    std::uint32_t rank = 0;
    std::uint32_t id = 0;
  };
  void symbols_of(std::string_view word, std::vector<std::uint32_t>& ids) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;
  const Merge* merge_of(std::uint32_t left, std::uint32_t right) const {
    return merges_.find(static_cast<std::uint64_t>(left) << 32 | right);
  }

  TokenIds vocabulary_;
  Options options_;
  std::array<std::uint32_t, 256> byte_ids_{};  // byte_level: the token of each byte; fallback: of <0xXX>
  FlatMap<Merge> merges_;
  std::uint32_t rank_ = 0;
};

}  // namespace tessera::data
