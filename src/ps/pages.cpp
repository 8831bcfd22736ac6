#include "ps/pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"

namespace tessera::ps {
namespace {

constexpr std::size_t kHuge = std::size_t{2} << 20;

std::byte* map(std::size_t bytes) {
  // With a huge page more than is needed a block can begin where one does.
  const std::size_t asked = bytes + kHuge;
  void* const mapped = mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED)
    throw Error(ErrorCode::resource_exhausted, text("the system gives no more memory: ", bytes, " bytes were asked for a table"), {}, "",
                "give the tables to more servers, or let rows that are seldom used leave");
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped), aligned = (begin + kHuge - 1) / kHuge * kHuge;
  if (aligned > begin) munmap(mapped, aligned - begin);
  if (const std::size_t rest = begin + asked - (aligned + bytes); rest > 0) munmap(reinterpret_cast<void*>(aligned + bytes), rest);
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);  // a wish
  return reinterpret_cast<std::byte*>(aligned);
}

}  // namespace

// What pieces leave of a block's last huge page is an eighth of the block at most.
Pages::Pages(std::size_t piece)
    : piece_(piece),
      block_(piece % kHuge == 0 || kHuge % piece == 0 ? std::max(piece, kHuge) : (std::max(piece, 8 * kHuge) + kHuge - 1) / kHuge * kHuge) {
}

Pages::~Pages() {
  for (std::byte* block : blocks_) munmap(block, block_);
}

Pages::Pages(Pages&& other) noexcept
    : piece_(other.piece_),
      block_(other.block_),
      blocks_(std::exchange(other.blocks_, {})),
      taken_(std::exchange(other.taken_, 0)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(piece_, other.piece_);
  std::swap(block_, other.block_);
  std::swap(blocks_, other.blocks_);
  std::swap(taken_, other.taken_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

std::byte* Pages::take() {
  if (blocks_.empty() || taken_ == block_ / piece_) {
    blocks_.reserve(blocks_.size() + 1);  // so that a mapping is never lost
    blocks_.push_back(map(block_));
    taken_ = 0;
  }
  bytes_ += piece_;
  return blocks_.back() + piece_ * taken_++;
}

}  // namespace tessera::ps
