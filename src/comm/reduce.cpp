#include "comm/reduce.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

// The loops below are compiled once for each vector width and chosen at load time.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TESSERA_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define TESSERA_VECTORISED
#endif

namespace tessera::comm {
namespace {

constexpr std::size_t kTile = 2048;  // elements that stay in the first-level cache while further sources are added

float widen(std::uint16_t value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16); }

// Round to nearest even; NaN stays NaN.
std::uint16_t narrow(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>(is_nan ? ((bits >> 16) | 0x40U) : rounded);
}

#define TESSERA_LOOP(NAME, TYPE, EXPRESSION)                                                 \
  TESSERA_VECTORISED void NAME(TYPE* out, const TYPE* a, const TYPE* b, std::size_t count) { \
    for (std::size_t i = 0; i < count; ++i) {                                                \
      const TYPE x = a[i];                                                                   \
      const TYPE y = b[i];                                                                   \
      out[i] = static_cast<TYPE>(EXPRESSION);                                                \
    }                                                                                        \
  }
// A NaN in either operand must survive max and min, whichever side it is on.
#define TESSERA_FLOAT_LOOPS(PREFIX, TYPE)                     \
  TESSERA_LOOP(PREFIX##_sum, TYPE, x + y)                     \
  TESSERA_LOOP(PREFIX##_max, TYPE, (x > y || x != x) ? x : y) \
  TESSERA_LOOP(PREFIX##_min, TYPE, (x < y || x != x) ? x : y)
#define TESSERA_INTEGER_LOOPS(PREFIX, TYPE, WIDE)                               \
  TESSERA_LOOP(PREFIX##_sum, TYPE, static_cast<WIDE>(x) + static_cast<WIDE>(y)) \
  TESSERA_LOOP(PREFIX##_max, TYPE, x > y ? x : y)                               \
  TESSERA_LOOP(PREFIX##_min, TYPE, x < y ? x : y)

TESSERA_FLOAT_LOOPS(f32, float)
TESSERA_FLOAT_LOOPS(f64, double)
TESSERA_INTEGER_LOOPS(i32, std::int32_t, std::uint32_t)
TESSERA_INTEGER_LOOPS(i64, std::int64_t, std::uint64_t)
TESSERA_INTEGER_LOOPS(u8, std::uint8_t, std::uint32_t)

TESSERA_VECTORISED void widen_all(float* out, const std::uint16_t* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = widen(in[i]);
}
TESSERA_VECTORISED void narrow_all(std::uint16_t* out, const float* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = narrow(in[i]);
}
TESSERA_VECTORISED void bf16_sum(std::uint16_t* out, const std::uint16_t* a, const std::uint16_t* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = narrow(widen(a[i]) + widen(b[i]));
}
TESSERA_VECTORISED void bf16_max(std::uint16_t* out, const std::uint16_t* a, const std::uint16_t* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float x = widen(a[i]);
    const float y = widen(b[i]);
    out[i] = (x > y || x != x) ? a[i] : b[i];
  }
}
TESSERA_VECTORISED void bf16_min(std::uint16_t* out, const std::uint16_t* a, const std::uint16_t* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float x = widen(a[i]);
    const float y = widen(b[i]);
    out[i] = (x < y || x != x) ? a[i] : b[i];
  }
}

template <typename T>
using Loop = void (*)(T*, const T*, const T*, std::size_t);

template <typename T>
void run(Loop<T> sum, Loop<T> max, Loop<T> min, void* out, const void* a, const void* b, std::size_t count, Reduction reduction) {
  const Loop<T> loop = reduction == Reduction::sum ? sum : reduction == Reduction::max ? max : min;
  loop(static_cast<T*>(out), static_cast<const T*>(a), static_cast<const T*>(b), count);
}

const void* advance(const void* pointer, std::size_t bytes) { return static_cast<const std::byte*>(pointer) + bytes; }
void* advance(void* pointer, std::size_t bytes) { return static_cast<std::byte*>(pointer) + bytes; }

void sum_bf16_tile(std::uint16_t* out, std::span<const void* const> sources, std::size_t first, std::size_t count) {
  std::array<float, kTile> total;
  std::array<float, kTile> next;
  widen_all(total.data(), static_cast<const std::uint16_t*>(sources[0]) + first, count);
  for (std::size_t s = 1; s < sources.size(); ++s) {
    widen_all(next.data(), static_cast<const std::uint16_t*>(sources[s]) + first, count);
    f32_sum(total.data(), total.data(), next.data(), count);
  }
  narrow_all(out + first, total.data(), count);
}

}  // namespace

void reduce_pair(void* out, const void* a, const void* b, std::size_t count, DataType type, Reduction reduction) {
  switch (type) {
    case DataType::f32: return run<float>(f32_sum, f32_max, f32_min, out, a, b, count, reduction);
    case DataType::f64: return run<double>(f64_sum, f64_max, f64_min, out, a, b, count, reduction);
    case DataType::bf16: return run<std::uint16_t>(bf16_sum, bf16_max, bf16_min, out, a, b, count, reduction);
    case DataType::i32: return run<std::int32_t>(i32_sum, i32_max, i32_min, out, a, b, count, reduction);
    case DataType::i64: return run<std::int64_t>(i64_sum, i64_max, i64_min, out, a, b, count, reduction);
    case DataType::u8: return run<std::uint8_t>(u8_sum, u8_max, u8_min, out, a, b, count, reduction);
  }
}

void reduce_all(void* out, std::span<const void* const> sources, std::size_t count, DataType type, Reduction reduction) {
  const std::size_t width = size_of(type);
  if (sources.size() == 1) {
    if (out != sources[0]) std::memcpy(out, sources[0], count * width);
    return;
  }
  if (sources.size() == 2) return reduce_pair(out, sources[0], sources[1], count, type, reduction);
  alignas(64) std::array<std::byte, kTile * 8> total;
  for (std::size_t first = 0; first < count; first += kTile) {
    const std::size_t n = std::min(kTile, count - first);
    if (type == DataType::bf16 && reduction == Reduction::sum) {
      sum_bf16_tile(static_cast<std::uint16_t*>(out), sources, first, n);
      continue;
    }
    // The tile is built aside, since `out` may be a source that is still to be read.
    reduce_pair(total.data(), advance(sources[0], first * width), advance(sources[1], first * width), n, type, reduction);
    for (std::size_t s = 2; s + 1 < sources.size(); ++s) {
      reduce_pair(total.data(), total.data(), advance(sources[s], first * width), n, type, reduction);
    }
    reduce_pair(advance(out, first * width), total.data(), advance(sources.back(), first * width), n, type, reduction);
  }
}

}  // namespace tessera::comm
