#include "data/bpe_model.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "data/byte_alphabet.hpp"
#include "data/utf8.hpp"

namespace tessera::data {
namespace {

constexpr std::uint32_t kNoRank = ~0u;
// Below this many symbols looking at all of them for each merge is faster than a heap.
constexpr std::size_t kShortWord = 48;

}  // namespace

WordCache::Entry& WordCache::place(std::string_view word) { return entries_[hash64(word) & (entries_.size() - 1)]; }

BpeModel::BpeModel(TokenIds vocabulary, Options options) : vocabulary_(std::move(vocabulary)), options_(options) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string key = options_.byte_level ? std::string(1, static_cast<char>(byte)) : byte_name(static_cast<unsigned char>(byte));
    const auto found = vocabulary_.find(key);
    byte_ids_[static_cast<std::size_t>(byte)] = found == vocabulary_.end() ? kNoId : found->second;
  }
}

void BpeModel::add_merge(std::uint32_t left, std::uint32_t right, std::uint32_t merged) {
  merges_[static_cast<std::uint64_t>(left) << 32 | right] = {rank_++, merged};
}

void BpeModel::symbols_of(std::string_view word, std::vector<std::uint32_t>& ids) const {
  bool unknown_before = false;
  const auto add_unknown = [&] {
    if (options_.unknown == kNoId) return;
    if (!(unknown_before && options_.fuse_unknown)) ids.push_back(options_.unknown);
    unknown_before = true;
  };
  if (options_.byte_level) {
    // One unknown token stands for a character of the byte alphabet, that is, for a byte.
    for (char byte : word) {
      const std::uint32_t id = byte_ids_[static_cast<unsigned char>(byte)];
      if (id == kNoId) {
        add_unknown();
      } else {
        ids.push_back(id);
        unknown_before = false;
      }
    }
    return;
  }
  for (std::size_t position = 0; position < word.size();) {
    const std::string_view character = word.substr(position, utf8_length(word[position]));
    position += character.size();
    if (const auto found = vocabulary_.find(character); found != vocabulary_.end()) {
      ids.push_back(found->second);
      unknown_before = false;
      continue;
    }
    const auto byte_id = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
    if (options_.byte_fallback && std::none_of(character.begin(), character.end(), [&](char byte) { return byte_id(byte) == kNoId; })) {
      for (char byte : character) ids.push_back(byte_id(byte));
      unknown_before = false;
      continue;
    }
    add_unknown();
  }
}

void BpeModel::encode(std::string_view word, Scratch& scratch, std::vector<std::uint32_t>& out) const {
  if (options_.byte_level && word.size() == 1 && byte_ids_[static_cast<unsigned char>(word[0])] != kNoId) {
    out.push_back(byte_ids_[static_cast<unsigned char>(word[0])]);
    return;
  }
  if (merges_.size() == 0 && !options_.ignore_merges) return symbols_of(word, out);
  WordCache::Entry* entry = nullptr;
  if (word.size() <= WordCache::kLongestWord) {
    entry = &scratch.cache.place(word);
    if (entry->length == word.size() && std::memcmp(entry->word, word.data(), word.size()) == 0) {
      out.insert(out.end(), entry->ids, entry->ids + entry->count);
      return;
    }
  }
  scratch.ids.clear();
  const auto whole = options_.ignore_merges ? vocabulary_.find(word) : vocabulary_.end();
  if (whole != vocabulary_.end()) {
    scratch.ids.push_back(whole->second);
  } else {
    symbols_of(word, scratch.ids);
    if (scratch.ids.size() > 1) scratch.ids.size() <= kShortWord ? merge_short(scratch) : merge_long(scratch);
  }
  if (entry != nullptr && scratch.ids.size() <= WordCache::kMostIds) {
    entry->length = static_cast<std::uint8_t>(word.size());
    entry->count = static_cast<std::uint8_t>(scratch.ids.size());
    std::memcpy(entry->word, word.data(), word.size());
    std::copy(scratch.ids.begin(), scratch.ids.end(), entry->ids);
  }
  out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
}

void BpeModel::merge_short(Scratch& scratch) const {
  auto& ids = scratch.ids;
  auto& ranks = scratch.ranks;    // of the pair that starts here
  auto& merged = scratch.merged;  // what that pair becomes
  ranks.assign(ids.size(), kNoRank);
  merged.resize(ids.size());
  const auto look_up = [&](std::size_t index) {
    const Merge* merge = index + 1 < ids.size() ? merge_of(ids[index], ids[index + 1]) : nullptr;
    ranks[index] = merge == nullptr ? kNoRank : merge->rank;
    if (merge != nullptr) merged[index] = merge->id;
  };
  for (std::size_t index = 0; index + 1 < ids.size(); ++index) look_up(index);
  while (ids.size() > 1) {
    const auto best = static_cast<std::size_t>(std::min_element(ranks.begin(), ranks.end()) - ranks.begin());
    if (ranks[best] == kNoRank) return;
    ids[best] = merged[best];
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    merged.erase(merged.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
}

void BpeModel::merge_long(Scratch& scratch) const {
  auto& ids = scratch.ids;
  if (ids.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw Error(ErrorCode::invalid_config, text("a word of ", ids.size(), " characters"), {}, "words of less than 2^31 characters",
                "use a tokenizer that cuts text into words, or split the file");
  }
  auto& heap = scratch.heap;  // rank << 32 | position of the left symbol; entries go stale and are checked when they come up
  const auto count = static_cast<std::int32_t>(ids.size());
  scratch.previous.resize(ids.size());
  scratch.next.resize(ids.size());
  heap.clear();
  const auto push = [&](std::int32_t left) {
    const std::int32_t right = left < 0 ? -1 : scratch.next[static_cast<std::size_t>(left)];
    if (right < 0) return;
    const Merge* merge = merge_of(ids[static_cast<std::size_t>(left)], ids[static_cast<std::size_t>(right)]);
    if (merge == nullptr) return;
    heap.push_back(static_cast<std::uint64_t>(merge->rank) << 32 | static_cast<std::uint32_t>(left));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (std::int32_t index = 0; index < count; ++index) {
    scratch.previous[static_cast<std::size_t>(index)] = index - 1;
    scratch.next[static_cast<std::size_t>(index)] = index + 1 < count ? index + 1 : -1;
  }
  for (std::int32_t index = 0; index + 1 < count; ++index) push(index);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const std::uint64_t top = heap.back();
    heap.pop_back();
    const auto left = static_cast<std::size_t>(top & 0xFFFFFFFFu);
    if (ids[left] == kNoId || scratch.next[left] < 0) continue;
    const auto right = static_cast<std::size_t>(scratch.next[left]);
    const Merge* merge = merge_of(ids[left], ids[right]);
    if (merge == nullptr || merge->rank != top >> 32) continue;
    ids[left] = merge->id;
    ids[right] = kNoId;
    scratch.next[left] = scratch.next[right];
    if (scratch.next[left] >= 0) scratch.previous[static_cast<std::size_t>(scratch.next[left])] = static_cast<std::int32_t>(left);
    push(static_cast<std::int32_t>(left));
    push(scratch.previous[left]);
  }
  std::erase(ids, kNoId);
}

}  // namespace tessera::data
