// What the shard is held against: one open-addressing table of a fixed size, linear probing, rows and AdaGrad's moment of each row in
// arrays of their own, all in huge pages, and every batch prefetched in the same way. It cannot grow, erase or say how large it is.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace tessera::bench {

template <typename T>
T* huge_pages(std::size_t count) {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const std::size_t bytes = (count * sizeof(T) + kHuge - 1) / kHuge * kHuge;
  void* const memory = mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  auto* const aligned = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory) + kHuge - 1) / kHuge * kHuge);
  madvise(aligned, bytes, MADV_HUGEPAGE);
  return reinterpret_cast<T*>(aligned);
}

// Memory is given back at the end of the process.
class PlainTable {
 public:
  static constexpr int kDimension = 16;

  explicit PlainTable(std::size_t rows)
      : mask_(std::bit_ceil(rows * 3 / 2) - 1),
        slots_(huge_pages<Slot>(mask_ + 1)),
        values_(huge_pages<float>(rows * kDimension)),
        moments_(huge_pages<float>(rows)) {}

  void pull(std::span<const std::uint64_t> keys, float* to) {
    each(keys, false, [&](std::size_t i, std::uint32_t row) {
      std::memcpy(to + i * kDimension, values_ + std::size_t{row} * kDimension, kDimension * sizeof(float));
    });
  }

  void push(std::span<const std::uint64_t> keys, const float* gradients) {
    each(keys, true, [&](std::size_t i, std::uint32_t row) {
      const float* const gradient = gradients + i * kDimension;
      float* const values = values_ + std::size_t{row} * kDimension;
      float sum = 0;
      for (int d = 0; d < kDimension; ++d) sum += gradient[d] * gradient[d];
      const float moment = moments_[row] += sum / kDimension, rate = 0.05f / (std::sqrt(moment) + 1e-8f);
      for (int d = 0; d < kDimension; ++d) values[d] -= rate * gradient[d];
    });
  }

  // 64 bytes of one random row after another, nothing else: what this memory can do.
  float read(std::span<const std::uint64_t> rows) const {
    float sum = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i + kAhead < rows.size()) __builtin_prefetch(values_ + rows[i + kAhead] * kDimension);
      const float* const values = values_ + rows[i] * kDimension;
      for (int d = 0; d < kDimension; ++d) sum += values[d];
    }
    return sum;
  }

 private:
  static constexpr std::size_t kAhead = 32;
  struct Slot {
    std::uint64_t key;
    std::uint32_t row_after;  // 0: free
  };

  std::size_t home(std::uint64_t key) const {
    key *= 0x9E3779B97F4A7C15ull;
    return (key ^ (key >> 32)) & mask_;
  }
  std::uint32_t find_or_add(std::uint64_t key) {
    for (std::size_t place = home(key);; place = (place + 1) & mask_) {
      Slot& slot = slots_[place];
      if (slot.row_after == 0) slot = {key, ++count_};
      if (slot.key == key) return slot.row_after - 1;
    }
  }
  template <typename Use>
  void each(std::span<const std::uint64_t> keys, bool writes, const Use& use) {
    std::uint32_t rows[kAhead];
    for (std::size_t begin = 0; begin < keys.size(); begin += kAhead) {
      const std::size_t count = std::min(kAhead, keys.size() - begin);
      for (std::size_t i = 0; i < count && begin + kAhead + i < keys.size(); ++i)
        __builtin_prefetch(&slots_[home(keys[begin + kAhead + i])]);
      for (std::size_t i = 0; i < count; ++i) {
        rows[i] = find_or_add(keys[begin + i]);
        __builtin_prefetch(values_ + std::size_t{rows[i]} * kDimension, 1);
        if (writes) __builtin_prefetch(moments_ + rows[i], 1);
      }
      for (std::size_t i = 0; i < count; ++i) use(begin + i, rows[i]);
    }
  }

  std::size_t mask_;
  Slot* slots_;
  float *values_, *moments_;
  std::uint32_t count_ = 0;
};

}  // namespace tessera::bench
