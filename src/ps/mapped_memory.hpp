// Internal. An allocator for large arrays that come and go in no order: each goes back to the system when it is freed, where a heap would
// keep what lies between those that are left.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory>
#include <new>

namespace tessera::ps {

template <typename T>
struct MappedMemory {
  using value_type = T;
  static constexpr std::size_t kLeastBytes = 128 << 10;  // smaller arrays lie on the heap

  T* allocate(std::size_t count) {
    if (count * sizeof(T) < kLeastBytes) return std::allocator<T>().allocate(count);
    void* const mapped = ::mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    return static_cast<T*>(mapped);
  }
  void deallocate(T* array, std::size_t count) {
    if (count * sizeof(T) < kLeastBytes)
      std::allocator<T>().deallocate(array, count);
    else
      ::munmap(array, count * sizeof(T));
  }
  bool operator==(const MappedMemory&) const = default;
};

}  // namespace tessera::ps
