// Internal. The search for many keys among pieces on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ps/piece.hpp"
#include "ps/scratch_file.hpp"

namespace tessera::ps {

using Pieces = std::vector<std::shared_ptr<const Piece>>;  // of a partition, oldest first

// Belongs to one thread; another one may write to bytes of the file that belong to no piece.
class ColdSearch {
 public:
  ColdSearch(const PieceFormat& format, const ScratchFile& file) : format_(format), file_(file) {}

  using Found = std::function<void(std::size_t, const std::byte* record)>;
  // Calls with those of the keys that have a row, in no particular order, each with its place in `keys`. `mapped`: the file is; then a
  // record is valid as long as its piece's bytes belong to that. False: it had to wait for the disk. Throws Error(io).
  bool find(std::span<const std::uint64_t> keys, std::span<const Pieces> partitions, bool mapped, const Found& found);

 private:
  // Where a key may be.
  struct Search {
    std::size_t item, partition;
    std::uint64_t hash;
    std::size_t piece;
    std::optional<std::size_t> block = {};
  };

  // Moves on to the next place; false after the last one.
  bool go_on(Search& search) const;
  const Piece& piece_of(const Search& search) const { return *partitions_[search.partition][search.piece]; }
  // The place of its block in the file.
  std::uint64_t place_of(Search& search) const;
  // The key's record; null where there is none, and where it goes on with its search, or it has been erased.
  const std::byte* look(const Search& search, std::uint64_t key, std::span<const std::byte> block);
  void look_at_map(std::span<const std::uint64_t> keys, const Found& found);
  // Whether it had to wait for the disk.
  bool look_by_reads(std::span<const std::uint64_t> keys, const Found& found);

  PieceFormat format_;
  const ScratchFile& file_;
  std::span<const Pieces> partitions_;  // these and what follows: of a find() that goes on
  std::vector<Search> searches_, in_block_;
  std::vector<std::pair<std::size_t, const std::byte*>> records_;  // which it found
};

// Calls with each, whose bytes are on their way from memory meanwhile.
void use_records(std::span<const std::pair<std::size_t, const std::byte*>> records, std::size_t record_bytes, const ColdSearch::Found& use);

}  // namespace tessera::ps
