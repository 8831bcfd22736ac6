// internal: a SentencePiece model and its two ways to cut a normalized text into pieces.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe_model.hpp"
#include "data/trie.hpp"

namespace tessera::data {

enum class PieceKind { normal, unknown, control, user_defined, unused, byte };

struct SentencePiece {
  std::string text;
  float score = 0;
  PieceKind kind = PieceKind::normal;
};

// What both ways need to know about the pieces. Immutable after construction.
struct SentencePieceTable {
  std::vector<SentencePiece> pieces;  // by id
  TokenIds searchable;                // normal, user-defined and unused pieces
  TokenIds reserved;                  // the others
  Trie user_defined;
  std::uint32_t unknown = 0;
  bool byte_fallback = false;
  std::array<std::uint32_t, 256> byte_ids{};  // when byte_fallback

  std::uint32_t id_of(std::string_view text) const;
};

// Checks the pieces and indexes them. Throws corrupt with `file`.
std::unique_ptr<SentencePieceTable> make_piece_table(std::vector<SentencePiece> pieces, bool byte_fallback, const std::string& file);

struct PieceSpan {
  std::size_t begin;
  std::size_t end;
  std::uint32_t id;
};

// Cuts a normalized text. Immutable; safe to use from several threads.
class PieceCutter {
 public:
  virtual ~PieceCutter() = default;
  virtual std::vector<PieceSpan> cut(std::string_view normalized) const = 0;
};

// The most likely segmentation under a unigram model (Kudo 2018), with sums in single precision as the reference has them.
std::unique_ptr<PieceCutter> make_unigram_cutter(const SentencePieceTable& table);
// Merges of the best-scored neighbours first.
std::unique_ptr<PieceCutter> make_merge_cutter(const SentencePieceTable& table);

}  // namespace tessera::data
