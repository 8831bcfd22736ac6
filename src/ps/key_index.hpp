// Internal. From keys to row numbers: extendible hashing with buckets of a cache line (after CCEH, Nam et al., FAST 2019).
//
// A key's hash says which segment of 64 KiB (by its high bits, through a directory) and which line in it (by its low bits). A full segment
// is split in two, so growing never rebuilds the whole.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "ps/pages.hpp"

namespace tessera::ps {

// Different keys seldom have the same hash.
inline std::uint64_t hash_of(std::uint64_t key) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(key ^ 0x2D358DCCAA6C78A5ull) * 0x9E3779B97F4A7C15ull;
  const std::uint64_t folded = static_cast<std::uint64_t>(product >> 64) ^ static_cast<std::uint64_t>(product);
  return folded * 0xD6E8FEB86659FD93ull;
}

// Both ends belong to it.
struct HashRange {
  std::uint64_t first = 0, last = ~std::uint64_t{0};
  bool has(std::uint64_t hash) const { return first <= hash && hash <= last; }
};
// One of `parts` ranges of one size, which together are all hashes.
inline HashRange part_of_all(std::uint32_t part, std::uint32_t parts) {
  __extension__ using Wide = unsigned __int128;
  const auto begin = [parts](std::uint64_t at) { return (static_cast<Wide>(at) << 64) / parts; };
  return {static_cast<std::uint64_t>(begin(part)), static_cast<std::uint64_t>(begin(std::uint64_t{part} + 1) - 1)};
}

class KeyIndex {
 public:
  using Key = std::uint64_t;
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  KeyIndex();

  // Where a key most likely stands, asked for from memory. Valid as long as the index, whatever happens to it meanwhile.
  class Place {
   public:
    Place() = default;

   private:
    friend class KeyIndex;
    explicit Place(const void* line) : line_(line) {}
    const void* line_ = nullptr;
  };
  Place ask(Key key) const {
    const Line* const line = &home(hash_of(key));
    __builtin_prefetch(line);
    return Place(line);
  }
  // kNone: there is no such key.
  std::uint32_t find(Key key, Place asked) const {
    const Line& line = *static_cast<const Line*>(asked.line_);
    const int slot = slot_of(line, key);
    // A key that is not in the line may have moved since, or never have fitted in.
    return slot >= 0 ? line.rows[static_cast<std::size_t>(slot)] : find(key);
  }
  std::uint32_t find(Key key) const;
  // Precondition: find(key) is kNone.
  void insert(Key key, std::uint32_t row);
  // Precondition: find(key) is not kNone. Its row is another one now.
  void replace(Key key, std::uint32_t row);
  // The row it had, or kNone.
  std::uint32_t erase(Key key);

  std::size_t size() const { return size_; }
  std::size_t bytes() const { return pages_.bytes() + directory_.capacity() * sizeof(Segment*); }
  // Visits the keys whose hash lies in the range, in no particular order.
  void for_each(HashRange range, const std::function<void(Key, std::uint32_t)>& visit) const;
  // Erases those of the range for which `leaves` is true, which is asked in the order of for_each. Many erasures one by one lengthen later
  // searches and leave memory taken; after this, searches are short, and segments that are nearly empty have been joined.
  void erase_if(HashRange range, const std::function<bool(Key, std::uint32_t)>& leaves);

 private:
  static constexpr int kSlots = 5;
  // Keys that do not fit in their line stand in one of the next ones, which `passed` says.
  struct alignas(64) Line {
    std::array<Key, kSlots> keys;
    std::array<std::uint32_t, kSlots> rows;
    std::uint8_t used;  // a bit for each slot
    bool passed;
  };
  static_assert(sizeof(Line) == 64);
  static constexpr std::size_t kLines = 1024 - 1;  // the first line's place holds the segment's depth
  static constexpr std::size_t kMostSteps = 16;    // from a key's line
  struct Segment {
    alignas(64) int depth;  // bits of the hash that all its keys share
    std::array<Line, kLines> lines;
  };

  static std::size_t home_of(std::uint64_t hash) { return static_cast<std::size_t>(((hash & 0xFFFFFFFF) * kLines) >> 32); }
  // Without a branch that depends on the place, which no processor would predict.
  static int slot_of(const Line& line, Key key) {
    unsigned equal = 0;
    for (std::size_t slot = 0; slot < kSlots; ++slot) equal |= static_cast<unsigned>(line.keys[slot] == key) << slot;
    equal &= line.used;
    return equal == 0 ? -1 : __builtin_ctz(equal);
  }
  // Where a key stands; `line` is null where it does not.
  struct Slot {
    Line* line = nullptr;
    int number = 0;
  };
  Slot slot_of(Key key) const;
  static std::size_t used(const Segment& segment);
  static bool add(Segment& segment, Key key, std::uint64_t hash, std::uint32_t row);

  std::size_t directory_place(std::uint64_t hash) const { return depth_ == 0 ? 0 : static_cast<std::size_t>(hash >> (64 - depth_)); }
  const Line& home(std::uint64_t hash) const { return directory_[directory_place(hash)]->lines[home_of(hash)]; }
  void place(Key key, std::uint64_t hash, std::uint32_t row);
  // The segment of this hash.
  void split(std::uint64_t hash);
  // Joins the segment of this hash with the one from which it was once split, as often as both together are at most half full.
  void join(std::uint64_t hash);
  // Calls with each segment that has hashes of the range, and the first hash that belongs to it.
  template <typename Visit>
  void for_segments(HashRange range, const Visit& visit) const;

  Pages pages_;
  std::vector<Segment*> directory_;
  int depth_ = 0;
  std::size_t size_ = 0;
};

}  // namespace tessera::ps
