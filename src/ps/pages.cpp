#include "ps/pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"

namespace tessera::ps {
namespace {

constexpr std::size_t kHuge = std::size_t{2} << 20, kPage = 4096;
constexpr std::size_t kGrown = std::size_t{32} << 20;

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
  if (!ahead_.valid()) return;
  try {
    munmap(ahead_.get(), block_);
  } catch (const Error&) {
    // There was no memory for it.
  }
}

Pages::Pages(Pages&& other) noexcept
    : piece_(other.piece_),
      block_(other.block_),
      blocks_(std::exchange(other.blocks_, {})),
      taken_(std::exchange(other.taken_, 0)),
      given_back_(std::exchange(other.given_back_, {})),
      ahead_(std::move(other.ahead_)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(piece_, other.piece_);
  std::swap(block_, other.block_);
  std::swap(blocks_, other.blocks_);
  std::swap(taken_, other.taken_);
  std::swap(given_back_, other.given_back_);
  std::swap(ahead_, other.ahead_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

std::byte* Pages::take() {
  if (!given_back_.empty()) {
    bytes_ += piece_;
    std::byte* const piece = given_back_.back();
    given_back_.pop_back();
    return piece;
  }
  if (blocks_.empty() || taken_ == block_ / piece_) {
    blocks_.reserve(blocks_.size() + 1);  // so that a mapping is never lost
    blocks_.push_back(next_block());
    taken_ = 0;
  }
  bytes_ += piece_;
  return blocks_.back() + piece_ * taken_++;
}

std::byte* Pages::next_block() {
  std::byte* const block = ahead_.valid() ? ahead_.get() : map(block_);
  if (bytes_ >= kGrown)
    ahead_ = std::async(std::launch::async, [bytes = block_] {
      std::byte* const next = map(bytes);
      for (std::size_t at = 0; at < bytes; at += kPage) *static_cast<volatile std::byte*>(next + at) = std::byte{0};
      return next;
    });
  return block;
}

void Pages::give_back(std::byte* piece) {
  given_back_.push_back(piece);
  bytes_ -= piece_;
  // Pieces need not be whole pages; what a neighbour shares stays, and is zeroed here.
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(piece), end = begin + piece_;
  const std::uintptr_t first = std::min(end, (begin + kPage - 1) / kPage * kPage), last = std::max(first, end / kPage * kPage);
  std::memset(piece, 0, first - begin);
  std::memset(reinterpret_cast<void*>(last), 0, end - last);
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace tessera::ps
