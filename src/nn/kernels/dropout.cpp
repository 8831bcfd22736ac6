#include "nn/kernels/dropout.hpp"

#include <ATen/Parallel.h>
#include <algorithm>
#include <cmath>

#include "nn/kernels/dispatch.hpp"

namespace tessera::nn::kernels {
namespace {

// Elements that share 64 random bits.
constexpr std::int64_t kLane = 4;

// The output function of splitmix64 (Steele, Lea, Flood 2014) over a counter.
TESSERA_INLINE std::uint64_t bits_at(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t z = seed + (counter + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// Elements [begin, end) of a sample; begin is a multiple of kLane.
template <typename T>
TESSERA_INLINE void drop_some(const T* x, T* out, std::int64_t begin, std::int64_t end, std::uint64_t seed, std::uint32_t threshold,
                              float scale) {
  for (std::int64_t i = begin; i < end; i += kLane) {
    const std::uint64_t bits = bits_at(seed, static_cast<std::uint64_t>(i / kLane));
    const std::int64_t count = std::min(kLane, end - i);
    for (std::int64_t j = 0; j < count; ++j) {
      const auto draw = static_cast<std::uint32_t>(bits >> (16 * j)) & 0xFFFFu;
      store(out[i + j], draw < threshold ? 0.0f : load(x[i + j]) * scale);
    }
  }
}

TESSERA_MULTIVERSION void drop(const float* x, float* out, std::int64_t begin, std::int64_t end, std::uint64_t seed,
                               std::uint32_t threshold, float scale) {
  drop_some(x, out, begin, end, seed, threshold, scale);
}
TESSERA_MULTIVERSION void drop(const Bf16* x, Bf16* out, std::int64_t begin, std::int64_t end, std::uint64_t seed, std::uint32_t threshold,
                               float scale) {
  drop_some(x, out, begin, end, seed, threshold, scale);
}

}  // namespace

void dropout(const at::Tensor& x, double probability, const std::vector<std::uint64_t>& seeds, at::Tensor& out) {
  ensure(x.is_contiguous() && out.is_contiguous() && x.size(0) == static_cast<std::int64_t>(seeds.size()),
         "dropout takes contiguous samples, with a seed for each");
  const std::int64_t each = x.numel() / std::max<std::int64_t>(1, x.size(0));
  const auto threshold = static_cast<std::uint32_t>(std::lround(probability * 65536));
  const auto scale = static_cast<float>(1 / (1 - probability));
  constexpr std::int64_t kChunk = 8192;  // elements of a task; a multiple of kLane
  const std::int64_t chunks = (each + kChunk - 1) / kChunk;
  dispatch(x, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, x.size(0) * chunks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t sample = task / chunks;
        const std::int64_t first = task % chunks * kChunk;
        drop(data<T>(x) + sample * each, data<T>(out) + sample * each, first, std::min(each, first + kChunk),
             seeds[static_cast<std::size_t>(sample)], threshold, scale);
      }
    });
  });
}

}  // namespace tessera::nn::kernels
