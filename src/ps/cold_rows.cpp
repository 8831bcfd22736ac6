#include "ps/cold_rows.hpp"

#include <algorithm>
#include <chrono>

#include "base/error.hpp"
#include "ps/in_flight.hpp"

namespace tessera::ps {
namespace {

constexpr double kFewestFilterBits = 2, kMostFilterBits = 12;  // of a key: one in 80 that are not there is looked for in vain
constexpr std::size_t kMergedPieces = 4;                       // at once, or more: fewer are more reads, more are more searches
constexpr std::size_t kMostPieces = 16;                        // of a partition, before rows wait for merges
constexpr std::size_t kAskedBytes = 512;                       // of a record, from memory; the processor fetches what follows by itself

std::shared_ptr<const Piece> merge(const ScratchFile& file, const PieceFormat& format, std::span<const std::shared_ptr<const Piece>> pieces,
                                   std::uint64_t offset, std::size_t most_records, double filter_bits) {
  PieceWriter writer(file, format, offset, most_records, filter_bits);
  MergedRecords records(file, format, pieces, {});
  while (const std::byte* const record = records.next()) {
    std::copy_n(record, format.record_bytes, writer.next());
    writer.add();
  }
  return writer.finish();
}

}  // namespace

ColdRows::ColdRows(const std::filesystem::path& folder, std::size_t row_bytes, int partition_bits, std::size_t filter_bytes)
    : format_(row_bytes, partition_bits), filter_bytes_(filter_bytes), file_(folder), partitions_(std::size_t{1} << partition_bits) {}

HashRange ColdRows::range(std::size_t partition) const {
  if (format_.hash_bits == 0) return {};
  const int rest = 64 - format_.hash_bits;
  return {std::uint64_t{partition} << rest, (std::uint64_t{partition} << rest) + ((std::uint64_t{1} << rest) - 1)};
}

ColdRows::Search ColdRows::search_for(std::size_t item, std::uint64_t key) const {
  const std::uint64_t hash = hash_of(key);
  const std::size_t partition = partition_of(hash);
  return {.item = item, .partition = partition, .hash = hash, .piece = partitions_[partition].pieces.size()};
}

bool ColdRows::go_on(Search& search) const {
  const Pieces& pieces = partitions_[search.partition].pieces;
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

void ColdRows::find(std::span<const std::uint64_t> keys, const Found& found) {
  const bool mapped = resident_ && file_.map(extents_.end());
  const std::int64_t faults = mapped ? major_faults() : 0;
  searches_.clear();
  for (std::size_t item = 0; item < keys.size(); ++item) searches_.push_back(search_for(item, keys[item]));
  bool waited = false;
  while (!searches_.empty()) {
    in_block_.clear();
    in_flight(
        searches_.size(),
        [&](std::size_t i) {
          const Piece::Bits bits(searches_[i].hash);
          for (const auto& piece : partitions_[searches_[i].partition].pieces) piece->ask(bits);
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
  resident_ = mapped ? major_faults() == faults : !waited;
}

std::uint64_t ColdRows::place_of(Search& search) const {
  const Piece& piece = piece_of(search);
  if (!search.block) search.block = piece.block_of(search.hash);
  return piece.block_offset(*search.block);
}

const std::byte* ColdRows::look(const Search& search, std::uint64_t key, std::span<const std::byte> block) {
  const std::byte* const record = piece_of(search).find(*search.block, block, key, search.hash);
  if (record == nullptr) searches_.push_back(search);
  return record == nullptr || Record::erased(record) ? nullptr : record;
}

void ColdRows::look_at_map(std::span<const std::uint64_t> keys, const Found& found) {
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
  in_flight(
      records_.size(),
      [&](std::size_t i) {
        for (std::size_t at = 0; at < std::min(kAskedBytes, format_.record_bytes); at += 64) __builtin_prefetch(records_[i].second + at);
      },
      [&](std::size_t i) { found(records_[i].first, records_[i].second); });
}

bool ColdRows::look_by_reads(std::span<const std::uint64_t> keys, const Found& found) {
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

void ColdRows::add(std::size_t partition, std::size_t count, const std::function<void(std::size_t, std::byte*)>& fill) {
  end_merge(false);
  Pieces& pieces = partitions_[partition].pieces;
  while (pieces.size() >= kMostPieces && merge_ != nullptr) {
    end_merge(true);
    begin_merge();
  }
  pieces.reserve(pieces.size() + 1);
  const std::uint64_t bytes = format_.bytes(count), offset = extents_.take(bytes);
  try {
    PieceWriter writer(file_, format_, offset, count, filter_bits(count));
    for (std::size_t i = 0; i < count; ++i) {
      fill(i, writer.next());
      writer.add();
    }
    pieces.push_back(writer.finish());
    memory_bytes_ += pieces.back()->memory_bytes();
  } catch (...) {
    extents_.give_back(offset, bytes);
    throw;
  }
  begin_merge();
}

bool ColdRows::erase_from(const Piece& piece, std::uint64_t key) {
  const std::uint64_t hash = hash_of(key);
  if (!piece.may_hold(Piece::Bits(hash))) return false;
  std::vector<std::byte> block(format_.block_bytes);
  for (std::size_t number = piece.block_of(hash);; --number) {
    file_.read(piece.block_offset(number), block);
    if (const std::byte* const record = piece.find(number, block, key, hash); record != nullptr) {
      if (Record::erased(record)) return false;
      const std::uint32_t mark = 0;
      file_.write(piece.block_offset(number) + static_cast<std::uint64_t>(record - block.data()) + Record::kMarkOffset,
                  std::as_bytes(std::span(&mark, 1)));
      return true;
    }
    if (number == 0 || !piece.may_reach(number - 1, hash)) return false;
  }
}

bool ColdRows::erase(std::uint64_t key) {
  const std::size_t number = partition_of(hash_of(key));
  Partition& partition = partitions_[number];
  bool there = false;
  for (const auto& piece : partition.pieces)
    if (erase_from(*piece, key)) {
      there = true;
      ++partition.erased;
    }
  if (there && merge_ != nullptr && merge_->partition == number) merge_->erased.push_back(key);
  return there;
}

void ColdRows::for_each(HashRange range, const std::function<void(const std::byte*)>& visit) const {
  for (std::size_t partition = partition_of(range.first); partition <= partition_of(range.last); ++partition) {
    const HashRange whole = this->range(partition);
    MergedRecords records(file_, format_, partitions_[partition].pieces,
                          {std::max(range.first, whole.first), std::min(range.last, whole.last)});
    while (const std::byte* const record = records.next()) visit(record);
  }
}

// A partition's largest piece gets most of its share; smaller ones, which are searched as often, have more for each key.
double ColdRows::filter_bits(std::size_t records) const {
  const double share = static_cast<double>(filter_bytes_ * 8) / static_cast<double>(partitions_.size());
  return std::clamp(share * 3 / 4 / static_cast<double>(records), kFewestFilterBits, kMostFilterBits);
}

std::optional<std::size_t> ColdRows::to_merge(const Partition& partition) {
  const Pieces& pieces = partition.pieces;
  if (pieces.empty()) return {};
  std::size_t all = 0;
  for (const auto& piece : pieces) all += piece->records();
  if (partition.erased > all / 2) return 0;
  std::size_t first = pieces.size() - 1, sum = pieces[first]->records();
  while (first > 0 && pieces[first - 1]->records() <= sum + sum / 2) sum += pieces[--first]->records();
  return pieces.size() - first >= kMergedPieces ? std::optional(first) : std::nullopt;
}

void ColdRows::begin_merge() {
  if (merge_ != nullptr) return;
  // The partition with the most pieces first.
  std::optional<std::size_t> next;
  for (std::size_t partition = 0; partition < partitions_.size(); ++partition)
    if ((!next || partitions_[partition].pieces.size() > partitions_[*next].pieces.size()) && to_merge(partitions_[partition]))
      next = partition;
  if (!next) return;
  const std::size_t first = *to_merge(partitions_[*next]);
  const Pieces& pieces = partitions_[*next].pieces;
  std::size_t records = 0;
  for (std::size_t i = first; i < pieces.size(); ++i) records += pieces[i]->records();
  const std::uint64_t bytes = format_.bytes(records);
  merge_ = std::make_unique<Merge>(Merge{.partition = *next,
                                         .first = first,
                                         .pieces = {pieces.begin() + static_cast<std::ptrdiff_t>(first), pieces.end()},
                                         .offset = bytes < kLargePiece ? extents_.take(bytes) : extents_.take(bytes, kHugePage),
                                         .bytes = bytes});
  merge_->result = std::async(std::launch::async, [this, records, bits = filter_bits(records), &job = *merge_] {
    return merge(file_, format_, job.pieces, job.offset, records, bits);
  });
}

void ColdRows::end_merge(bool wait) {
  if (merge_ == nullptr || (!wait && merge_->result.wait_for(std::chrono::seconds(0)) != std::future_status::ready)) return;
  const std::unique_ptr<Merge> done = std::move(merge_);
  std::shared_ptr<const Piece> merged;
  try {
    merged = done->result.get();
  } catch (const Error&) {
    // The pieces stay as they are. If the disk is full, the next rows that are to go there will say so.
    extents_.give_back(done->offset, done->bytes);
    return;
  }
  Partition& partition = partitions_[done->partition];
  extents_.give_back(done->offset + merged->disk_bytes(), done->bytes - merged->disk_bytes());
  for (const auto& piece : done->pieces) {
    memory_bytes_ -= piece->memory_bytes();
    extents_.give_back(piece->offset(), piece->disk_bytes());
  }
  const auto first = partition.pieces.begin() + static_cast<std::ptrdiff_t>(done->first);
  partition.pieces.erase(first + 1, first + static_cast<std::ptrdiff_t>(done->pieces.size()));
  if (merged->records() > 0) {
    *first = merged;
    memory_bytes_ += merged->memory_bytes();
  } else {
    partition.pieces.erase(first);
  }
  // What was erased before the merge began is not in the new piece.
  if (done->first == 0) partition.erased = 0;
  for (const std::uint64_t key : done->erased) partition.erased += erase_from(*merged, key) ? 1 : 0;
}

}  // namespace tessera::ps
