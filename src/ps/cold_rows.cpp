#include "ps/cold_rows.hpp"

#include <algorithm>
#include <chrono>

#include "base/error.hpp"

namespace tessera::ps {
namespace {

constexpr double kFewestFilterBits = 2, kMostFilterBits = 12;  // of a key: one in 80 that are not there is looked for in vain
constexpr std::size_t kMergedPieces = 4;                       // at once, or more: fewer are more reads, more are more searches
constexpr std::size_t kMostPieces = 16;                        // of a partition, before rows wait for merges

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
    : format_(row_bytes, partition_bits),
      filter_bytes_(filter_bytes),
      file_(folder),
      pieces_(std::size_t{1} << partition_bits),
      changes_(pieces_.size()),
      erased_(pieces_.size()),
      search_(format_, file_),
      look_ahead_(format_, file_) {}

HashRange ColdRows::range(std::size_t partition) const {
  if (format_.hash_bits == 0) return {};
  const int rest = 64 - format_.hash_bits;
  return {std::uint64_t{partition} << rest, (std::uint64_t{partition} << rest) + ((std::uint64_t{1} << rest) - 1)};
}

bool ColdRows::map() {
  if (file_.maps(extents_.end())) return true;
  look_ahead_.wait();
  return file_.map(extents_.end());
}

std::shared_ptr<Ahead> ColdRows::look_ahead(std::span<const std::uint64_t> keys) {
  if (!resident_ || !map()) return nullptr;
  const auto ahead = std::make_shared<Ahead>(std::vector(keys.begin(), keys.end()), pieces_, changes_);
  look_ahead_.begin(ahead);
  return ahead;
}

void ColdRows::find(std::span<const std::uint64_t> keys, const Found& found, Ahead* ahead, std::span<const std::size_t> places) {
  found_ahead_.clear();
  not_ahead_.clear();
  items_not_ahead_.clear();
  // What the other thread has not come to yet, this one looks for itself: it may be that no core is left for the other.
  const bool done = ahead != nullptr && ahead->done.load(std::memory_order_acquire);
  if (done)
    resident_ = resident_ && ahead->resident;
  else if (ahead != nullptr)
    ahead->unwanted = true;
  for (std::size_t item = 0; item < keys.size(); ++item) {
    const std::size_t partition = partition_of(hash_of(keys[item]));
    if (!done || places[item] >= ahead->keys.size() || ahead->keys[places[item]] != keys[item] ||
        ahead->changes[partition] != changes_[partition]) {
      not_ahead_.push_back(keys[item]);
      items_not_ahead_.push_back(item);
    } else if (const std::byte* const record = ahead->records[places[item]]) {
      found_ahead_.push_back({item, record});
    }
  }
  use_records(found_ahead_, format_.record_bytes, [&](std::size_t item, const std::byte* record) {
    if (!Record::erased(record)) found(item, record);
  });
  if (not_ahead_.empty()) return;
  resident_ = search_.find(not_ahead_, pieces_, resident_ && map(),
                           [&](std::size_t i, const std::byte* record) { found(items_not_ahead_[i], record); });
}

void ColdRows::add(std::size_t partition, std::size_t count, const std::function<void(std::size_t, std::byte*)>& fill) {
  end_merge(false);
  Pieces& pieces = pieces_[partition];
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
    ++changes_[partition];
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
  bool there = false;
  for (const auto& piece : pieces_[number])
    if (erase_from(*piece, key)) {
      there = true;
      ++erased_[number];
    }
  if (there && merge_ != nullptr && merge_->partition == number) merge_->erased.push_back(key);
  return there;
}

void ColdRows::for_each(HashRange range, const std::function<void(const std::byte*)>& visit) const {
  for (std::size_t partition = partition_of(range.first); partition <= partition_of(range.last); ++partition) {
    const HashRange whole = this->range(partition);
    MergedRecords records(file_, format_, pieces_[partition], {std::max(range.first, whole.first), std::min(range.last, whole.last)});
    while (const std::byte* const record = records.next()) visit(record);
  }
}

// A partition's largest piece gets most of its share; smaller ones, which are searched as often, have more for each key.
double ColdRows::filter_bits(std::size_t records) const {
  const double share = static_cast<double>(filter_bytes_ * 8) / static_cast<double>(pieces_.size());
  return std::clamp(share * 3 / 4 / static_cast<double>(records), kFewestFilterBits, kMostFilterBits);
}

std::optional<std::size_t> ColdRows::to_merge(std::size_t partition) const {
  const Pieces& pieces = pieces_[partition];
  if (pieces.empty()) return {};
  std::size_t all = 0;
  for (const auto& piece : pieces) all += piece->records();
  if (erased_[partition] > all / 2) return 0;
  std::size_t first = pieces.size() - 1, sum = pieces[first]->records();
  while (first > 0 && pieces[first - 1]->records() <= sum + sum / 2) sum += pieces[--first]->records();
  return pieces.size() - first >= kMergedPieces ? std::optional(first) : std::nullopt;
}

void ColdRows::begin_merge() {
  if (merge_ != nullptr) return;
  // The partition with the most pieces first.
  std::optional<std::size_t> next;
  for (std::size_t partition = 0; partition < pieces_.size(); ++partition)
    if ((!next || pieces_[partition].size() > pieces_[*next].size()) && to_merge(partition)) next = partition;
  if (!next) return;
  const std::size_t first = *to_merge(*next);
  const Pieces& pieces = pieces_[*next];
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
  Pieces& pieces = pieces_[done->partition];
  ++changes_[done->partition];
  extents_.give_back(done->offset + merged->disk_bytes(), done->bytes - merged->disk_bytes());
  for (const auto& piece : done->pieces) {
    memory_bytes_ -= piece->memory_bytes();
    extents_.give_back(piece->offset(), piece->disk_bytes());
  }
  const auto first = pieces.begin() + static_cast<std::ptrdiff_t>(done->first);
  pieces.erase(first + 1, first + static_cast<std::ptrdiff_t>(done->pieces.size()));
  if (merged->records() > 0) {
    *first = merged;
    memory_bytes_ += merged->memory_bytes();
  } else {
    pieces.erase(first);
  }
  // What was erased before the merge began is not in the new piece.
  if (done->first == 0) erased_[done->partition] = 0;
  for (const std::uint64_t key : done->erased) erased_[done->partition] += erase_from(*merged, key) ? 1 : 0;
}

}  // namespace tessera::ps
