// Internal. Rows of a table that lie on disk: a log-structured merge tree over the hash of the key.
//
// The hashes are divided evenly among partitions. Rows come a partition at a time and make a piece of it; a thread merges pieces of similar
// size, one partition at a time, so that there are few and at most about half of the bytes are of rows that have a newer place. Another
// thread looks for rows that will be wanted next.
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

#include "ps/cold_search.hpp"
#include "ps/extents.hpp"
#include "ps/key_index.hpp"
#include "ps/look_ahead.hpp"
#include "ps/piece.hpp"
#include "ps/scratch_file.hpp"

namespace tessera::ps {

// Belongs to one thread. Throws Error(io) when the disk refuses, with all rows as they were.
class ColdRows {
 public:
  // `filter_bytes`: about what the filters take in memory at most; smaller ones mean more reads of rows that are not there.
  ColdRows(const std::filesystem::path& folder, std::size_t row_bytes, int partition_bits, std::size_t filter_bytes);

  std::size_t partitions() const { return pieces_.size(); }
  HashRange range(std::size_t partition) const;
  std::size_t partition_of(std::uint64_t hash) const { return format_.partition_of(hash); }

  // Begins to look for keys on another thread, for a find() to come; null where that would wait for the disk one key after the other.
  std::shared_ptr<Ahead> look_ahead(std::span<const std::uint64_t> keys);
  // Calls with those of the keys that have a row, in no particular order, each with its place in `keys`. `ahead`: null, or from
  // look_ahead(); then `places` has one for each key: where among those it stands, if it does.
  using Found = ColdSearch::Found;
  void find(std::span<const std::uint64_t> keys, const Found& found, Ahead* ahead = nullptr, std::span<const std::size_t> places = {});
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
  // Some neighbours of a partition's pieces becoming one.
  struct Merge {
    std::size_t partition, first;
    Pieces pieces;
    std::uint64_t offset, bytes;             // where the new piece goes
    std::vector<std::uint64_t> erased = {};  // keys, since it began
    std::future<std::shared_ptr<const Piece>> result = {};
  };
  // Whether the file could be mapped.
  bool map();
  bool erase_from(const Piece& piece, std::uint64_t key);
  double filter_bits(std::size_t records) const;
  // The first of a partition's pieces that are to become one, if any are.
  std::optional<std::size_t> to_merge(std::size_t partition) const;
  void begin_merge();
  // Puts the new piece in once it is there, or waits for it.
  void end_merge(bool wait);

  PieceFormat format_;
  std::size_t filter_bytes_;
  std::size_t memory_bytes_ = 0;
  ScratchFile file_;
  bool resident_ = true;  // what the last find() read was in memory
  Extents extents_;
  std::vector<Pieces> pieces_;          // of each partition
  std::vector<std::uint32_t> changes_;  // of each partition's pieces, how often
  std::vector<std::size_t> erased_;     // of each partition's records, how many
  ColdSearch search_;
  std::vector<std::pair<std::size_t, const std::byte*>> found_ahead_;  // of a find() that goes on
  std::vector<std::uint64_t> not_ahead_;                               // its keys that are still to be looked for
  std::vector<std::size_t> items_not_ahead_;                           // where they stand
  std::unique_ptr<Merge> merge_;                                       // its thread, and the other one, use what stands above
  LookAhead look_ahead_;
};

}  // namespace tessera::ps
