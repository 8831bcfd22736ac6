// Internal: memory of the kernels for matrix products.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace tessera::nn::kernels {

// Room for so many floats, aligned to a page. Grows and is never given back: one per thread and use, of which there are six.
inline float* scratch(int use, std::int64_t floats) {
  struct Buffer {
    std::unique_ptr<float, decltype(&std::free)> data{nullptr, &std::free};
    std::int64_t size = 0;
  };
  thread_local Buffer buffers[6];
  Buffer& buffer = buffers[use];
  if (buffer.size < floats) {
    const std::size_t bytes = static_cast<std::size_t>((floats * 4 + 4095) / 4096 * 4096);
    buffer.data.reset(static_cast<float*>(std::aligned_alloc(4096, bytes)));
    if (buffer.data == nullptr) throw std::bad_alloc();
    buffer.size = floats;
  }
  return buffer.data.get();
}

}  // namespace tessera::nn::kernels
