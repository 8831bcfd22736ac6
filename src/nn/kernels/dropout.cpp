#include "nn/kernels/dropout.hpp"

#include <ATen/Parallel.h>
#include <algorithm>
#include <cmath>

#include "nn/kernels/aten/kernels.hpp"
#include "nn/kernels/device.hpp"
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

// What is dropped, and what the rest is multiplied by.
struct Share {
  explicit Share(double probability)
      : threshold(static_cast<std::uint32_t>(std::lround(probability * 65536))), scale(static_cast<float>(1 / (1 - probability))) {}
  std::uint32_t threshold;
  float scale;
};

// So many elements, the first of which is element `first` of a sample.
template <typename T>
TESSERA_INLINE void drop_some(const T* x, T* out, std::int64_t first, std::int64_t count, std::uint64_t seed, Share share) {
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t lane = (first + i) / kLane;
    const std::uint64_t bits = bits_at(seed, static_cast<std::uint64_t>(lane));
    for (std::int64_t j = first + i - lane * kLane; j < kLane && i < count; ++j, ++i) {
      const auto draw = static_cast<std::uint32_t>(bits >> (16 * j)) & 0xFFFFu;
      store(out[i], draw < share.threshold ? 0.0f : load(x[i]) * share.scale);
    }
  }
}

TESSERA_MULTIVERSION void drop(const float* x, float* out, std::int64_t first, std::int64_t count, std::uint64_t seed, Share share) {
  drop_some(x, out, first, count, seed, share);
}
TESSERA_MULTIVERSION void drop(const Bf16* x, Bf16* out, std::int64_t first, std::int64_t count, std::uint64_t seed, Share share) {
  drop_some(x, out, first, count, seed, share);
}

}  // namespace

void dropout(const at::Tensor& x, double probability, const std::vector<std::uint64_t>& seeds, at::Tensor& out) {
  ensure(x.is_contiguous() && out.is_contiguous() && x.size(0) == static_cast<std::int64_t>(seeds.size()),
         "dropout takes contiguous samples, with a seed for each");
  if (!use_cpu_kernels(x)) return aten::dropout(x, probability, seeds, out);
  const std::int64_t each = x.numel() / std::max<std::int64_t>(1, x.size(0));
  const Share share(probability);
  constexpr std::int64_t kChunk = 8192;  // elements of a task
  const std::int64_t chunks = (each + kChunk - 1) / kChunk;
  dispatch(x, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, x.size(0) * chunks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t sample = task / chunks;
        const std::int64_t first = task % chunks * kChunk;
        drop(data<T>(x) + sample * each + first, data<T>(out) + sample * each + first, first, std::min(kChunk, each - first),
             seeds[static_cast<std::size_t>(sample)], share);
      }
    });
  });
}

void dropout_rows(const at::Tensor& x, double probability, const std::vector<RowPlace>& places, at::Tensor& out) {
  ensure(x.is_contiguous() && out.is_contiguous() && x.size(0) == std::ssize(places),
         "dropout takes contiguous rows, with a place for each");
  if (!use_cpu_kernels(x)) return aten::dropout_rows(x, probability, places, out);
  const std::int64_t width = x.size(1);
  const Share share(probability);
  dispatch(x, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, x.size(0), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const RowPlace& place = places[static_cast<std::size_t>(r)];
        drop(data<T>(x) + r * width, data<T>(out) + r * width, place.first, width, place.seed, share);
      }
    });
  });
}

}  // namespace tessera::nn::kernels
