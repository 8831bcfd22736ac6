// Internal. What a serving table's file is made of: rows, the index, the name, and the end, which says where they are. Little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/hash.hpp"
#include "ps/key_index.hpp"
#include "ps/ps.hpp"

namespace tessera::ps {

inline constexpr std::array<char, 8> kServingMagic = {'T', 'S', 'R', 'T', 'A', 'B', 'L', 'E'};
inline constexpr std::uint32_t kServingVersion = 1;
inline constexpr std::size_t kServingLine = 64, kServingChunk = std::size_t{1} << 20;

struct ServingSlot {
  Key key;
  std::uint64_t row;  // all ones: the slot is empty
};
// A cache line. Keys that find no empty slot in their own line stand in the first one behind it that has one.
struct ServingLine {
  std::array<ServingSlot, 4> slots;
};
static_assert(sizeof(ServingLine) == kServingLine);

struct ServingEnd {
  std::uint64_t rows, lines;
  std::uint64_t index_at, name_at;  // from the file's begin, where the rows are
  std::uint64_t rows_checksum, index_checksum;
  std::uint32_t dimension, type, name_bytes, version;
  std::uint64_t checksum;  // of the name and what stands above
  std::array<char, 8> magic;
};
static_assert(sizeof(ServingEnd) == 80);

// The checksum of one MiB after the other, each seeded with the one before.
inline std::uint64_t serving_checksum(std::span<const std::byte> bytes, std::uint64_t before = 0) {
  for (; bytes.size() > kServingChunk; bytes = bytes.subspan(kServingChunk)) before = hash64(bytes.first(kServingChunk), before);
  return bytes.empty() ? before : hash64(bytes, before);
}

inline std::uint64_t serving_checksum(const ServingEnd& end, std::span<const std::byte> name) {
  return hash64(std::as_bytes(std::span(&end, 1)).first(offsetof(ServingEnd, checksum)), hash64(name));
}

inline std::uint64_t serving_line_of(Key key, std::uint64_t lines) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(hash_of(key)) * lines >> 64);
}

}  // namespace tessera::ps
