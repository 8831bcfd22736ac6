// Internal. Memory from the system in pieces of one size, zeroed, in huge pages where the system gives them, and exactly counted.
#pragma once

#include <cstddef>
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
  // Of all pieces that were taken.
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t piece_, block_;
  std::vector<std::byte*> blocks_;
  std::size_t taken_ = 0;  // pieces of the last block
  std::size_t bytes_ = 0;
};

}  // namespace tessera::ps
