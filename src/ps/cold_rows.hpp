// Internal. Rows of a table that lie on disk: a log-structured merge tree over the hash of the key.
//
// The hashes are divided evenly among partitions. Rows come a partition at a time and make a piece of it; a thread merges pieces of similar
// size, one partition at a time, so that there are few and at most about half of the bytes are of rows that have a newer place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ps/extents.hpp"
#include "ps/piece.hpp"
#include "ps/scratch_file.hpp"

namespace tessera::ps {

// Belongs to one thread. Throws Error(io) when the disk refuses, with all rows as they were.
class ColdRows {
 public:
  // `filter_bytes`: about what the filters take in memory at most; smaller ones mean more reads of rows that are not there.
  ColdRows(const std::filesystem::path& folder, std::size_t row_bytes, int partition_bits, std::size_t filter_bytes);

  std::size_t partitions() const { return partitions_.size(); }
  HashRange range(std::size_t partition) const;
  std::size_t partition_of(std::uint64_t hash) const { return format_.hash_bits == 0 ? 0 : hash >> (64 - format_.hash_bits); }

  // Calls with those of the keys that have a row, in no particular order, each with its place in `keys`.
  using Found = std::function<void(std::size_t, const std::byte* record)>;
  void find(std::span<const std::uint64_t> keys, const Found& found);
  // Takes in `count` rows of different keys of a partition, over those that are there. `fill` is called for each in turn, with bytes to
  // fill in by Record::begin, in the order of hash and key.
  void add(std::size_t partition, std::size_t count, const std::function<void(std::size_t, std::byte* record)>& fill);
  // Whether there was a row.
  bool erase(std::uint64_t key);
  // Calls with each row's record, in the order of hash and key.
  void for_each(HashRange range, const std::function<void(const std::byte* record)>& visit) const;

  std::size_t memory_bytes() const { return memory_bytes_; }
  std::size_t disk_bytes() const { return extents_.end(); }

 private:
  using Pieces = std::vector<std::shared_ptr<const Piece>>;  // oldest first
  struct Partition {
    Pieces pieces;
    std::size_t erased = 0;  // records
  };
  // Some neighbours of a partition's pieces becoming one.
  struct Merge {
    std::size_t partition, first;
    Pieces pieces;
    std::uint64_t offset, bytes;             // where the new piece goes
    std::vector<std::uint64_t> erased = {};  // keys, since it began
    std::future<std::shared_ptr<const Piece>> result = {};
  };
  // Where a key may be.
  struct Search {
    std::size_t item, partition;
    std::uint64_t hash;
    std::size_t piece;
    std::optional<std::size_t> block = {};
  };

  Search search_for(std::size_t item, std::uint64_t key) const;
  // Moves on to the next place; false after the last one.
  bool go_on(Search& search) const;
  const Piece& piece_of(const Search& search) const { return *partitions_[search.partition].pieces[search.piece]; }
  // Of its block, in the file.
  std::uint64_t place_of(Search& search) const;
  // The key's record; null where there is none, and where it goes on with its search, or it has been erased.
  const std::byte* look(const Search& search, std::uint64_t key, std::span<const std::byte> block);
  void look_at_map(std::span<const std::uint64_t> keys, const Found& found);
  // Whether it had to wait for the disk.
  bool look_by_reads(std::span<const std::uint64_t> keys, const Found& found);
  bool erase_from(const Piece& piece, std::uint64_t key);
  double filter_bits(std::size_t records) const;
  // The first of the pieces that are to become one, if any are.
  static std::optional<std::size_t> to_merge(const Partition& partition);
  void begin_merge();
  // Puts the new piece in once it is there, or waits for it.
  void end_merge(bool wait);

  PieceFormat format_;
  std::size_t filter_bytes_;
  std::size_t memory_bytes_ = 0;
  ScratchFile file_;
  bool resident_ = true;  // what the last find() read was in memory
  Extents extents_;
  std::vector<Partition> partitions_;
  std::vector<Search> searches_, in_block_;                        // of a find() that goes on
  std::vector<std::pair<std::size_t, const std::byte*>> records_;  // which it found
  std::unique_ptr<Merge> merge_;                                   // its thread uses what stands above
};

}  // namespace tessera::ps
