#include "ps/cold_search.hpp"

#include <algorithm>

#include "ps/in_flight.hpp"
#include "ps/key_index.hpp"

namespace tessera::ps {
namespace {

constexpr std::size_t kAskedBytes = 512;  // of a record, from memory; the processor fetches what follows by itself

}  // namespace

bool ColdSearch::go_on(Search& search) const {
  const Pieces& pieces = partitions_[search.partition];
  if (search.block && *search.block > 0 && pieces[search.piece]->may_reach(*search.block - 1, search.hash)) {
    --*search.block;
    return true;
  }
  search.block.reset();
  const Piece::Bits bits(search.hash);
  while (search.piece > 0)
    if (const Piece& piece = *pieces[--search.piece]; piece.may_hold(bits)) {
      piece.ask_block(search.hash);
      return true;
    }
  return false;
}

bool ColdSearch::find(std::span<const std::uint64_t> keys, std::span<const Pieces> partitions, bool mapped, const Found& found) {
  const std::int64_t faults = mapped ? major_faults() : 0;
  partitions_ = partitions;
  searches_.clear();
  for (std::size_t item = 0; item < keys.size(); ++item) {
    const std::uint64_t hash = hash_of(keys[item]);
    const std::size_t partition = format_.partition_of(hash);
    searches_.push_back({.item = item, .partition = partition, .hash = hash, .piece = partitions[partition].size()});
  }
  bool waited = false;
  while (!searches_.empty()) {
    in_block_.clear();
    in_flight(
        searches_.size(),
        [&](std::size_t i) {
          const Piece::Bits bits(searches_[i].hash);
          for (const auto& piece : partitions_[searches_[i].partition]) piece->ask(bits);
        },
        [&](std::size_t i) {
          if (go_on(searches_[i])) in_block_.push_back(searches_[i]);
        });
    searches_.clear();
    if (mapped)
      look_at_map(keys, found);
    else
      waited |= look_by_reads(keys, found);
  }
  // Faults wait for the disk one after the other.
  return mapped ? major_faults() == faults : !waited;
}

std::uint64_t ColdSearch::place_of(Search& search) const {
  const Piece& piece = piece_of(search);
  if (!search.block) search.block = piece.block_of(search.hash);
  return piece.block_offset(*search.block);
}

const std::byte* ColdSearch::look(const Search& search, std::uint64_t key, std::span<const std::byte> block) {
  const std::byte* const record = piece_of(search).find(*search.block, block, key, search.hash);
  if (record == nullptr) searches_.push_back(search);
  return record == nullptr || Record::erased(record) ? nullptr : record;
}

void ColdSearch::look_at_map(std::span<const std::uint64_t> keys, const Found& found) {
  records_.clear();
  in_flight(
      in_block_.size(),
      [&](std::size_t i) {
        Search& search = in_block_[i];
        const std::byte* const block = file_.at(place_of(search));
        piece_of(search).ask_records(*search.block, search.hash, block);
      },
      [&](std::size_t i) {
        Search& search = in_block_[i];
        const std::byte* const record = look(search, keys[search.item], {file_.at(place_of(search)), format_.block_bytes});
        if (record != nullptr) records_.push_back({search.item, record});
      });
  use_records(records_, format_.record_bytes, found);
}

bool ColdSearch::look_by_reads(std::span<const std::uint64_t> keys, const Found& found) {
  std::vector<std::byte> buffer(format_.block_bytes);
  const auto use = [&](const Search& search) {
    if (const std::byte* const record = look(search, keys[search.item], buffer)) found(search.item, record);
  };
  std::erase_if(in_block_, [&](Search& search) {
    if (!file_.read_now(place_of(search), buffer)) return false;
    use(search);
    return true;
  });
  // By now the disk works on all of them at once.
  for (Search& search : in_block_) {
    file_.read(place_of(search), buffer);
    use(search);
  }
  return !in_block_.empty();
}

void use_records(std::span<const std::pair<std::size_t, const std::byte*>> records, std::size_t record_bytes,
                 const ColdSearch::Found& use) {
  in_flight(
      records.size(),
      [&](std::size_t i) {
        for (std::size_t at = 0; at < std::min(kAskedBytes, record_bytes); at += 64) __builtin_prefetch(records[i].second + at);
      },
      [&](std::size_t i) { use(records[i].first, records[i].second); });
}

}  // namespace tessera::ps
