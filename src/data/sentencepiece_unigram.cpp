#include <algorithm>
#include <limits>

#include "data/sentencepiece_model.hpp"
#include "data/utf8.hpp"

namespace tessera::data {
namespace {

constexpr float kUnknownPenalty = 10.0f;
// Sums below this start again from zero, so that single precision suffices for a text of any length.
constexpr float kLowestSum = -100000.0f;
// For each byte of a user-defined piece behind its first.
constexpr float kUserDefinedBonus = 0.1f;

class UnigramCutter final : public PieceCutter {
 public:
  explicit UnigramCutter(const SentencePieceTable& table) : table_(table) {
    float lowest = std::numeric_limits<float>::max();
    for (const SentencePiece& piece : table.pieces) {
      if (piece.kind != PieceKind::normal) continue;
      lowest = std::min(lowest, piece.score);
    }
    unknown_score_ = lowest - kUnknownPenalty;
    for (const auto& [text, id] : table.searchable) {
      if (table.pieces[id].kind == PieceKind::unused) continue;
      trie_.add(text, static_cast<std::int32_t>(id));
      longest_ = std::max(longest_, text.size());
    }
  }

  std::vector<PieceSpan> cut(std::string_view text) const override {
    struct Best {
      std::uint32_t id = 0;
      float score = 0;
      std::int64_t begin = -1;
    };
    std::vector<Best> best(text.size() + 1);  // of all segmentations that end here
    for (std::size_t begin = 0; begin < text.size();) {
      if (best[begin].score < kLowestSum) {
        const float base = best[begin].score;
        for (std::size_t end = begin; end <= std::min(text.size(), begin + longest_); ++end) best[end].score -= base;
      }
      const float until_here = best[begin].score;
      const auto offer = [&](std::size_t end, float score, std::uint32_t id) {
        Best& there = best[end];
        if (there.begin >= 0 && !(score > there.score)) return;
        there = {id, score, static_cast<std::int64_t>(begin)};
      };
      const std::size_t character = std::min(utf8_length(text[begin]), text.size() - begin);
      bool covered = false;
      Trie::Node node = 0;
      for (std::size_t end = begin; end < text.size();) {
        node = trie_.child(node, text[end]);
        if (node == Trie::kNone) break;
        ++end;
        const std::int32_t id = trie_.value(node);
        if (id == Trie::kNoValue) continue;
        const SentencePiece& piece = table_.pieces[static_cast<std::size_t>(id)];
        const float score = piece.kind == PieceKind::user_defined ? kUserDefinedBonus * static_cast<float>(end - begin - 1) : piece.score;
        offer(end, score + until_here, static_cast<std::uint32_t>(id));
        covered = covered || end - begin == character;
      }
      if (!covered) offer(begin + character, unknown_score_ + until_here, table_.unknown);
      begin += character;
    }
    std::vector<PieceSpan> spans;
    for (std::size_t end = text.size(); end > 0;) {
      const auto begin = static_cast<std::size_t>(best[end].begin);
      spans.push_back({begin, end, best[end].id});
      end = begin;
    }
    std::reverse(spans.begin(), spans.end());
    return spans;
  }

 private:
  const SentencePieceTable& table_;
  Trie trie_;
  std::size_t longest_ = 4;  // bytes of a piece or of an unknown character
  float unknown_score_ = 0;
};

}  // namespace

std::unique_ptr<PieceCutter> make_unigram_cutter(const SentencePieceTable& table) { return std::make_unique<UnigramCutter>(table); }

}  // namespace tessera::data
