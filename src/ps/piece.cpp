#include "ps/piece.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::ps {
namespace {

constexpr std::size_t kBlock = 2048;           // read at once; of larger ones more bytes are copied, of smaller ones more is in memory
constexpr std::size_t kReadAhead = 256 << 10;  // bytes that are read or written at once, in whole blocks
constexpr std::size_t kAskedRecords = 2;       // on both sides of the likeliest
constexpr std::size_t kFarGuess = 64;          // blocks

std::size_t buffer_blocks(const PieceFormat& format, std::uint64_t bytes = kReadAhead) {
  return std::max<std::size_t>(1, bytes / format.block_bytes);
}

}  // namespace

PieceFormat::PieceFormat(std::size_t row_bytes, int hash_bits)
    : record_bytes(Record::kHead + row_bytes),
      block_bytes((record_bytes + kBlock - 1) / kBlock * kBlock),
      block_records(block_bytes / record_bytes),
      hash_bits(hash_bits) {}

Piece::Piece(const PieceFormat& format, std::uint64_t offset, std::size_t most_records, double filter_bits)
    : format_(format),
      offset_(offset),
      filter_(static_cast<std::size_t>(static_cast<double>(most_records) * filter_bits / 64) + 1),
      filter_functions_(
          std::clamp<std::size_t>(static_cast<std::size_t>(std::lround(filter_bits * std::log(2.0))), 1, Bits(0).of_functions.size())) {
  fences_.reserve(format.blocks(most_records));
}

std::size_t Piece::block_of(std::uint64_t hash) const {
  const std::uint32_t fence = fence_of(hash);
  const std::size_t guess = guess_of(hash), end = fences_.size();
  std::size_t low = guess - std::min(guess, kFarGuess), high = std::min(end, guess + kFarGuess);
  if (fences_[low] > fence) low = 0;
  if (high < end && fences_[high] <= fence) high = end;
  const auto begin = fences_.begin(),
             after = std::upper_bound(begin + static_cast<std::ptrdiff_t>(low), begin + static_cast<std::ptrdiff_t>(high), fence);
  return after == fences_.begin() ? 0 : static_cast<std::size_t>(after - fences_.begin()) - 1;
}

std::size_t Piece::guessed_record(std::size_t block, std::uint64_t hash) const {
  const std::uint32_t first = fences_[block], fence = std::max(first, fence_of(hash));
  const std::uint32_t behind = block + 1 < fences_.size() ? fences_[block + 1] : ~std::uint32_t{0};
  const std::size_t records = records_of(block), guess = records * std::uint64_t{fence - first} / (std::uint64_t{behind - first} + 1);
  return std::min(guess, records - 1);
}

void Piece::ask_records(std::size_t block_number, std::uint64_t hash, const std::byte* block) const {
  const std::size_t guess = guessed_record(block_number, hash), end = std::min(records_of(block_number), guess + kAskedRecords + 1);
  for (std::size_t i = guess - std::min(guess, kAskedRecords); i < end; ++i) __builtin_prefetch(block + i * format_.record_bytes);
}

std::size_t Piece::records_of(std::size_t block) const { return std::min(format_.block_records, records_ - block * format_.block_records); }

const std::byte* Piece::find(std::size_t block_number, std::span<const std::byte> block, std::uint64_t key, std::uint64_t hash) const {
  const auto at = [&](std::size_t i) { return block.data() + i * format_.record_bytes; };
  const auto hash_at = [&](std::size_t i) { return hash_of(Record::key(at(i))); };
  const std::size_t end = records_of(block_number);
  std::size_t i = guessed_record(block_number, hash);
  while (i < end && hash_at(i) < hash) ++i;
  while (i > 0 && hash_at(i - 1) >= hash) --i;
  for (; i < end && hash_at(i) == hash; ++i)
    if (Record::key(at(i)) == key) return at(i);
  return nullptr;
}

PieceWriter::PieceWriter(const ScratchFile& file, const PieceFormat& format, std::uint64_t offset, std::size_t most_records,
                         double filter_bits)
    : file_(file),
      format_(format),
      piece_(new Piece(format, offset, most_records, filter_bits)),
      buffer_(buffer_blocks(format, format.bytes(most_records) < kLargePiece ? kReadAhead : kHugePage) * format.block_bytes) {}

std::byte* PieceWriter::next() {
  if (record_ == format_.block_records) {
    record_ = 0;
    if (++block_ * format_.block_bytes == buffer_.size()) write_blocks();
  }
  return buffer_.data() + block_ * format_.block_bytes + record_ * format_.record_bytes;
}

void PieceWriter::add() {
  const std::uint64_t hash = hash_of(Record::key(buffer_.data() + block_ * format_.block_bytes + record_ * format_.record_bytes));
  if (record_ == 0) piece_->fences_.push_back(piece_->fence_of(hash));
  const Piece::Bits bits(hash);
  piece_->filter_[piece_->word_of(bits)] |= bits.of_functions[piece_->filter_functions_ - 1];
  ++record_;
  ++piece_->records_;
}

void PieceWriter::write_blocks() {
  const std::size_t bytes = block_ * format_.block_bytes;
  file_.write(piece_->offset_ + written_, std::span(buffer_).first(bytes));
  written_ += bytes;
  block_ = 0;
}

std::shared_ptr<const Piece> PieceWriter::finish() {
  if (record_ > 0) ++block_;
  write_blocks();
  return std::move(piece_);
}

MergedRecords::MergedRecords(const ScratchFile& file, const PieceFormat& format, std::span<const std::shared_ptr<const Piece>> pieces,
                             HashRange range)
    : file_(file), format_(format), last_(range.last) {
  readers_.reserve(pieces.size());
  for (const auto& piece : pieces) {
    std::size_t block = piece->block_of(range.first);
    while (block > 0 && piece->may_reach(block - 1, range.first)) --block;
    Reader& reader = readers_.emplace_back(Reader{.piece = piece.get(), .block = block, .end = piece->block_of(range.last) + 1});
    fill(reader);
    while (reader.current != nullptr && reader.hash < range.first) move_on(reader);
  }
}

void MergedRecords::fill(Reader& reader) {
  reader.in_buffer = std::min(buffer_blocks(format_), reader.end - reader.block);
  reader.at = reader.record = 0;
  reader.buffer.resize(reader.in_buffer * format_.block_bytes);
  reader.current = nullptr;
  if (reader.in_buffer == 0) return;
  file_.read(reader.piece->block_offset(reader.block), reader.buffer);
  reader.current = reader.buffer.data();
  reader.hash = hash_of(Record::key(reader.current));
}

void MergedRecords::move_on(Reader& reader) {
  reader.used = false;
  if (++reader.record == reader.piece->records_of(reader.block + reader.at)) {
    reader.record = 0;
    if (++reader.at == reader.in_buffer) {
      reader.block += reader.in_buffer;
      fill(reader);
      return;
    }
  }
  reader.current = reader.buffer.data() + reader.at * format_.block_bytes + reader.record * format_.record_bytes;
  reader.hash = hash_of(Record::key(reader.current));
}

const std::byte* MergedRecords::next() {
  for (;;) {
    Reader* least = nullptr;
    for (Reader& reader : readers_) {
      if (reader.used) move_on(reader);
      if (reader.current == nullptr) continue;
      const bool after = least != nullptr && (reader.hash != least->hash ? reader.hash > least->hash
                                                                         : Record::key(reader.current) > Record::key(least->current));
      if (!after) least = &reader;  // of equal ones the newest
    }
    if (least == nullptr || least->hash > last_) return nullptr;
    const std::uint64_t key = Record::key(least->current);
    for (Reader& reader : readers_)
      reader.used = reader.current != nullptr && reader.hash == least->hash && Record::key(reader.current) == key;
    if (!Record::erased(least->current)) return least->current;
  }
}

}  // namespace tessera::ps
