#include <algorithm>
#include <cstring>
#include <utility>

#include "data/flat_map.hpp"
#include "data/scratch_pool.hpp"
#include "data/sentencepiece_model.hpp"
#include "data/utf8.hpp"

namespace tessera::data {
namespace {

constexpr std::uint32_t kNoSymbol = ~0u;

// A run of characters that takes part in merges. Symbols of the vocabulary have their id; characters that stand inside pieces without
// being one have numbers above all ids.
struct Symbol {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::uint32_t number = kNoSymbol;
  std::int32_t previous = -1;
  std::int32_t next = -1;
};

struct Candidate {
  float score;
  std::int32_t left;
  std::uint32_t piece;
  // The heap's top is the best score, of equals the leftmost.
  bool operator<(const Candidate& other) const { return score != other.score ? score < other.score : left > other.left; }
};

class MergeCutter final : public PieceCutter {
 public:
  explicit MergeCutter(const SentencePieceTable& table) : table_(table) {
    for (const auto& [text, id] : table.searchable) numbers_.emplace(text, id);
    auto next = static_cast<std::uint32_t>(table.pieces.size());
    for (const auto& [text, id] : table.searchable) {
      any_unused_ = any_unused_ || table.pieces[id].kind == PieceKind::unused;
      char32_t before = 0;
      for (std::size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
        const std::string_view character = std::string_view(text).substr(at, utf8_length(text[at]));
        const char32_t code_point = code_point_at(character);
        if (at > 0) inside_[pair_key(before, code_point)] = 1;
        before = code_point;
        if (numbers_.emplace(character, next).second) ++next;
      }
    }
    for (const auto& [text, id] : table.searchable) {
      for (std::size_t at = utf8_length(text[0]); at < text.size(); at += utf8_length(text[at])) {
        const auto left = numbers_.find(std::string_view(text).substr(0, at));
        const auto right = numbers_.find(std::string_view(text).substr(at));
        if (left != numbers_.end() && right != numbers_.end()) merges_[pair_key(left->second, right->second)] = id;
      }
    }
  }

  std::vector<PieceSpan> cut(std::string_view text) const override {
    const auto lease = scratch_.take([] { return std::make_unique<Scratch>(); });
    Scratch& scratch = *lease;
    std::vector<PieceSpan> spans;
    scratch.symbols.clear();
    char32_t before = 0;
    std::size_t chunk = 0;
    for (std::size_t at = 0; at < text.size();) {
      const auto fixed = table_.user_defined.longest(text.substr(at));
      const std::size_t length = fixed ? fixed->length : std::min(utf8_length(text[at]), text.size() - at);
      const bool whole = length == utf8_length(text[at]) || fixed;
      const char32_t code_point = fixed || !whole ? 0 : code_point_at(text.substr(at));
      // Two characters that stand side by side in no piece never meet in a merge, so what is left of them is done. Pieces marked as
      // unused are taken apart as they were last seen anywhere in the text; then all of it is one chunk.
      if (!any_unused_ && at > chunk && (fixed || inside_.find(pair_key(before, code_point)) == nullptr)) {
        finish_chunk(text, chunk, at, scratch, spans);
        chunk = at;
      }
      if (fixed && !any_unused_) {
        spans.push_back({at, at + length, static_cast<std::uint32_t>(fixed->value)});
        chunk = at + length;
      } else {
        scratch.symbols.push_back({.begin = at, .end = at + length, .number = kNoSymbol, .previous = -1, .next = fixed ? kFrozen : -1});
      }
      before = fixed ? 0 : code_point;
      at += length;
    }
    if (chunk < text.size()) finish_chunk(text, chunk, text.size(), scratch, spans);
    return spans;
  }

 private:
  static constexpr std::int32_t kFrozen = -2;

  struct Scratch {
    WordCache cache;
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::vector<PieceSpan> spans;
    std::unordered_map<std::uint32_t, std::pair<std::uint32_t, std::uint32_t>> halves;  // of unused pieces
  };

  static std::uint64_t pair_key(std::uint32_t left, std::uint32_t right) { return static_cast<std::uint64_t>(left) << 32 | right; }

  // Appends the pieces of text[begin, end), whose characters are scratch.symbols, and clears those.
  void finish_chunk(std::string_view text, std::size_t begin, std::size_t end, Scratch& scratch, std::vector<PieceSpan>& spans) const {
    const std::string_view chunk = text.substr(begin, end - begin);
    WordCache::Entry* entry = nullptr;
    if (!any_unused_ && chunk.size() <= WordCache::kLongestWord) {
      entry = &scratch.cache.place(chunk);
      if (entry->length == chunk.size() && std::memcmp(entry->word, chunk.data(), chunk.size()) == 0) {
        for (std::size_t index = 0; index < entry->count; ++index) {
          const std::size_t length = table_.pieces[entry->ids[index]].text.size();
          spans.push_back({begin, begin + length, entry->ids[index]});
          begin += length;
        }
        scratch.symbols.clear();
        return;
      }
    }
    merge(text, scratch);
    scratch.spans.clear();
    bool known = true;
    for (std::int32_t index = 0; index >= 0; index = scratch.symbols[static_cast<std::size_t>(index)].next) {
      const Symbol& symbol = scratch.symbols[static_cast<std::size_t>(index)];
      add_spans(text, symbol, scratch);
    }
    for (const PieceSpan& span : scratch.spans) known = known && span.id != table_.unknown;
    if (entry != nullptr && known && scratch.spans.size() <= WordCache::kMostIds) {
      entry->length = static_cast<std::uint8_t>(chunk.size());
      entry->count = static_cast<std::uint8_t>(scratch.spans.size());
      std::memcpy(entry->word, chunk.data(), chunk.size());
      for (std::size_t index = 0; index < scratch.spans.size(); ++index) entry->ids[index] = scratch.spans[index].id;
    }
    spans.insert(spans.end(), scratch.spans.begin(), scratch.spans.end());
    scratch.symbols.clear();
  }

  void merge(std::string_view text, Scratch& scratch) const {
    auto& symbols = scratch.symbols;
    auto& heap = scratch.heap;
    heap.clear();
    scratch.halves.clear();
    const auto count = static_cast<std::int32_t>(symbols.size());
    const auto at = [&](std::int32_t index) -> Symbol& { return symbols[static_cast<std::size_t>(index)]; };
    for (std::int32_t index = 0; index < count; ++index) {
      Symbol& symbol = at(index);
      if (symbol.next != kFrozen) {
        const auto found = numbers_.find(text.substr(symbol.begin, symbol.end - symbol.begin));
        if (found != numbers_.end()) symbol.number = found->second;
      }
      symbol.previous = index - 1;
      symbol.next = index + 1 < count ? index + 1 : -1;
    }
    const auto merged = [&](std::int32_t left) -> const std::uint32_t* {
      if (left < 0 || at(left).next < 0) return nullptr;
      const std::uint32_t a = at(left).number, b = at(at(left).next).number;
      return a == kNoSymbol || b == kNoSymbol ? nullptr : merges_.find(pair_key(a, b));
    };
    const auto push = [&](std::int32_t left) {
      const std::uint32_t* piece = merged(left);
      if (piece == nullptr) return;
      heap.push_back({table_.pieces[*piece].score, left, *piece});
      std::push_heap(heap.begin(), heap.end());
      if (table_.pieces[*piece].kind == PieceKind::unused) scratch.halves[*piece] = {at(left).number, at(at(left).next).number};
    };
    for (std::int32_t index = 0; index + 1 < count; ++index) push(index);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end());
      const Candidate top = heap.back();
      heap.pop_back();
      Symbol& left = at(top.left);
      if (left.begin == left.end) continue;
      const std::uint32_t* piece = merged(top.left);
      if (piece == nullptr || *piece != top.piece) continue;
      Symbol& right = at(left.next);
      left.end = right.end;
      left.number = top.piece;
      left.next = right.next;
      right.begin = right.end;
      right.number = kNoSymbol;
      if (left.next >= 0) at(left.next).previous = top.left;
      push(left.previous);
      push(top.left);
    }
  }

  void add_spans(std::string_view text, const Symbol& symbol, Scratch& scratch) const {
    const std::uint32_t id = table_.id_of(text.substr(symbol.begin, symbol.end - symbol.begin));
    std::vector<PieceSpan> open{{symbol.begin, symbol.end, id}};  // a stack, the leftmost on top
    while (!open.empty()) {
      const PieceSpan span = open.back();
      open.pop_back();
      const auto halves = table_.pieces[span.id].kind == PieceKind::unused ? scratch.halves.find(span.id) : scratch.halves.end();
      if (halves == scratch.halves.end()) {
        const bool unused = table_.pieces[span.id].kind == PieceKind::unused;
        scratch.spans.push_back({span.begin, span.end, unused ? table_.unknown : span.id});
        continue;
      }
      // Either half is a piece or a single character, whose text has a known length.
      const std::uint32_t left = halves->second.first;
      const std::size_t middle =
          span.begin + (left < table_.pieces.size() ? table_.pieces[left].text.size() : utf8_length(text[span.begin]));
      open.push_back({middle, span.end, table_.id_of(text.substr(middle, span.end - middle))});
      open.push_back({span.begin, middle, table_.id_of(text.substr(span.begin, middle - span.begin))});
    }
  }

  const SentencePieceTable& table_;
  TokenIds numbers_;
  FlatMap<std::uint32_t> merges_;  // left number << 32 | right number to the piece
  FlatMap<std::uint8_t> inside_;   // pairs of characters that stand side by side in some piece
  bool any_unused_ = false;
  mutable ScratchPool<Scratch> scratch_;
};

}  // namespace

std::unique_ptr<PieceCutter> make_merge_cutter(const SentencePieceTable& table) { return std::make_unique<MergeCutter>(table); }

}  // namespace tessera::data
