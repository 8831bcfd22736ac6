// Internal. Rows on disk in pieces that are written once: sorted by the hash of the key, in blocks, with each block's first hash and a
// filter in memory, so that finding a row reads one block and a key that is not there seldom reads any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "ps/key_index.hpp"
#include "ps/mapped_memory.hpp"
#include "ps/scratch_file.hpp"

namespace tessera::ps {

// A record: the key, a mark, the row. A mark of 0 says that the row has been erased; else it is the row's period and 1: when it was last
// changed, counted in saves of the table.
struct Record {
  static constexpr std::size_t kMarkOffset = 8, kHead = 12;

  static std::uint64_t key(const std::byte* record) { return take<std::uint64_t>(record); }
  static bool erased(const std::byte* record) { return take<std::uint32_t>(record + kMarkOffset) == 0; }
  static std::uint32_t period(const std::byte* record) { return take<std::uint32_t>(record + kMarkOffset) >> 1; }
  static const std::byte* row(const std::byte* record) { return record + kHead; }
  // The row's place, for the caller to fill.
  static std::byte* begin(std::byte* record, std::uint64_t key, std::uint32_t period) {
    const std::uint32_t mark = period << 1 | 1;
    std::memcpy(record, &key, sizeof key);
    std::memcpy(record + kMarkOffset, &mark, sizeof mark);
    return record + kHead;
  }

 private:
  template <typename T>
  static T take(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
};

// Pieces of at least this size begin at a multiple of kHugePage in the file and are written by huge pages at once: then many systems keep
// and map them as such, and finding where one of them is takes the processor less time than reading it.
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20, kLargePiece = 4 * kHugePage;

struct PieceFormat {
  PieceFormat(std::size_t row_bytes, int hash_bits);
  std::size_t record_bytes, block_bytes, block_records;
  int hash_bits;  // first ones, which all keys of a piece share

  std::size_t partition_of(std::uint64_t hash) const { return hash_bits == 0 ? 0 : hash >> (64 - hash_bits); }
  std::uint64_t blocks(std::size_t records) const { return (records + block_records - 1) / block_records; }
  std::uint64_t bytes(std::size_t records) const { return blocks(records) * block_bytes; }
};

class Piece {
 public:
  std::uint64_t offset() const { return offset_; }
  std::size_t records() const { return records_; }
  std::uint64_t disk_bytes() const { return format_.bytes(records_); }
  std::size_t memory_bytes() const { return fences_.capacity() * sizeof(std::uint32_t) + filter_.capacity() * sizeof(std::uint64_t); }

  // A hash, mixed for the filter.
  struct Bits {
    explicit Bits(std::uint64_t hash) : mixed((hash ^ hash >> 32) * 0xD6E8FEB86659FD93ull) {
      std::uint64_t drawn = mixed * 0x9E3779B97F4A7C15ull >> 20, bits = 0;
      for (std::uint64_t& so_far : of_functions) {
        bits |= std::uint64_t{1} << (drawn & 63);
        so_far = bits;
        drawn >>= 6;
      }
    }
    std::uint64_t mixed;
    std::array<std::uint64_t, 6> of_functions;  // the bits of one hash function, of two, and so on
  };

  void ask(const Bits& bits) const { __builtin_prefetch(&filter_[word_of(bits)]); }
  // False: certainly not.
  bool may_hold(const Bits& bits) const {
    const std::uint64_t wanted = bits.of_functions[filter_functions_ - 1];
    return (filter_[word_of(bits)] & wanted) == wanted;
  }
  // From memory, what block_of needs.
  void ask_block(std::uint64_t hash) const { __builtin_prefetch(&fences_[guess_of(hash)]); }
  // Where the key stands if it is here, or in the block before it while that may_reach it.
  std::size_t block_of(std::uint64_t hash) const;
  bool may_reach(std::size_t block_before, std::uint64_t hash) const { return fences_[block_before + 1] == fence_of(hash); }
  std::uint64_t block_offset(std::size_t block) const { return offset_ + block * format_.block_bytes; }
  // From memory, what find most likely needs.
  void ask_records(std::size_t block_number, std::uint64_t hash, const std::byte* block) const;
  // The key's record, or null.
  const std::byte* find(std::size_t block_number, std::span<const std::byte> block, std::uint64_t key, std::uint64_t hash) const;
  std::size_t records_of(std::size_t block) const;

 private:
  friend class PieceWriter;
  Piece(const PieceFormat& format, std::uint64_t offset, std::size_t most_records, double filter_bits);
  std::uint32_t fence_of(std::uint64_t hash) const { return static_cast<std::uint32_t>((hash << format_.hash_bits) >> 32); }
  std::size_t word_of(const Bits& bits) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::size_t>((static_cast<Wide>(bits.mixed) * filter_.size()) >> 64);
  }
  // Hashes are spread evenly: about which block a hash stands in, and which record of a block.
  std::size_t guess_of(std::uint64_t hash) const { return (std::uint64_t{fence_of(hash)} * fences_.size()) >> 32; }
  std::size_t guessed_record(std::size_t block, std::uint64_t hash) const;

  PieceFormat format_;
  std::uint64_t offset_;
  std::size_t records_ = 0;
  std::vector<std::uint32_t, MappedMemory<std::uint32_t>> fences_;  // of each block's first record
  std::vector<std::uint64_t, MappedMemory<std::uint64_t>> filter_;  // a Bloom filter with all bits of a key in one word
  std::size_t filter_functions_;
};

// Writes a piece into a part of the file that has format.bytes(most_records) bytes.
class PieceWriter {
 public:
  PieceWriter(const ScratchFile& file, const PieceFormat& format, std::uint64_t offset, std::size_t most_records, double filter_bits);
  // Where the next record is to be filled in, after which add() takes it. Sorted by hash, then key.
  std::byte* next();
  void add();
  std::shared_ptr<const Piece> finish();

 private:
  void write_blocks();

  const ScratchFile& file_;
  PieceFormat format_;
  std::shared_ptr<Piece> piece_;
  std::vector<std::byte, MappedMemory<std::byte>> buffer_;
  std::size_t block_ = 0, record_ = 0;  // in the buffer, and in its block
  std::uint64_t written_ = 0;
};

// The records of several pieces in the order of hash and key, of each key the newest, without erased ones.
class MergedRecords {
 public:
  // Those of the range; `pieces`, oldest first, live as long as this.
  MergedRecords(const ScratchFile& file, const PieceFormat& format, std::span<const std::shared_ptr<const Piece>> pieces, HashRange range);
  // Null after the last one. Valid until the next call.
  const std::byte* next();

 private:
  struct Reader {
    const Piece* piece;
    std::size_t block, end;          // the buffer's first block, and behind the last that is wanted
    std::size_t in_buffer = 0;       // blocks
    std::size_t at = 0, record = 0;  // the current record's block in the buffer, and its place there
    std::vector<std::byte, MappedMemory<std::byte>> buffer = {};
    const std::byte* current = nullptr;
    std::uint64_t hash = 0;
    bool used = false;  // to be moved on
  };
  void fill(Reader& reader);
  void move_on(Reader& reader);

  const ScratchFile& file_;
  PieceFormat format_;
  std::uint64_t last_;
  std::vector<Reader> readers_;
};

}  // namespace tessera::ps
