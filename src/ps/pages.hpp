// Internal. Memory from the system in pieces of one size, zeroed, in huge pages where the system gives them, and exactly counted.
#pragma once

#include <cstddef>
#include <future>
#include <vector>

namespace tessera::ps {

class Pages {
 public:
  // `piece`: bytes, a multiple of 64; pieces are cut from blocks of 2 MiB or more.
  explicit Pages(std::size_t piece);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;

  // Zeroed and aligned to 64 bytes; lives as long as this. Throws Error(resource_exhausted).
  std::byte* take();
  // The system has its memory back at once, and take() may give it again.
  void give_back(std::byte* piece);
  // The bytes of all pieces that are taken, and of the block that is being prepared.
  std::size_t bytes() const { return bytes_ + (ahead_.valid() ? block_ : 0); }

 private:
  std::byte* next_block();

  std::size_t piece_, block_;
  std::vector<std::byte*> blocks_;
  std::size_t taken_ = 0;  // pieces of the last block
  std::vector<std::byte*> given_back_;
  std::future<std::byte*> ahead_;  // of what has grown, the next block: the system zeroes it beside the table's work
  std::size_t bytes_ = 0;
};

}  // namespace tessera::ps
