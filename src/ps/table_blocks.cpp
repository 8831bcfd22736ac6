#include "ps/table_blocks.hpp"

#include <cstring>

#include "base/error.hpp"
#include "base/hash.hpp"

namespace tessera::ps {
namespace {

// Synced as it grows, so that the end need not wait for all of it.
constexpr std::size_t kSyncBytes = 64 << 20;

std::uint64_t checksum_of(const BlockHead& head, std::span<const std::byte> content, std::uint64_t before) {
  return hash64(content, hash64(std::as_bytes(std::span(&head, 1)), before));
}

}  // namespace

void BlockWriter::add(BlockKind kind, std::size_t count, std::span<const std::byte> content) {
  const BlockHead head{kind, static_cast<std::uint32_t>(count), content.size()};
  checksum_ = checksum_of(head, content, checksum_);
  file_->append(std::as_bytes(std::span(&head, 1)));
  file_->append(content);
  file_->append(std::as_bytes(std::span(&checksum_, 1)));
  unsynced_ += content.size();
  if (unsynced_ < kSyncBytes) return;
  file_->sync();
  unsynced_ = 0;
}

void BlockWriter::finish() {
  add(BlockKind::end, 0, {});
  file_->sync();
  file_->close();
}

BlockReader::Block BlockReader::next() {
  BlockHead head;
  std::uint64_t told;
  if (left_.size() < sizeof head + sizeof told) refuse("the file ends too early");
  std::memcpy(&head, left_.data(), sizeof head);
  left_ = left_.subspan(sizeof head);
  if (head.bytes > left_.size() - sizeof told) refuse("the file ends too early");
  const std::span<const std::byte> content = left_.first(head.bytes);
  std::memcpy(&told, left_.data() + head.bytes, sizeof told);
  checksum_ = checksum_of(head, content, checksum_);
  if (told != checksum_) refuse("a checksum does not hold");
  left_ = left_.subspan(head.bytes + sizeof told);
  if (head.kind == BlockKind::end && !left_.empty()) refuse("something follows the end");
  return {head.kind, head.count, content};
}

void BlockReader::refuse(const std::string& what) const {
  throw Error(ErrorCode::corrupt, text("rows of a table cannot be read: ", what, ", near byte ", file_.bytes().size() - left_.size()),
              {.file = path_.string(), .block = {}}, "", "take an earlier base and its deltas, or the rows of a peer");
}

}  // namespace tessera::ps
