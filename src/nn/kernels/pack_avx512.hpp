// Internal: matrices laid out for the tiles of gemm_avx512. Included by files for x86-64 alone.
#pragma once

// g++ 12 warns about its own intrinsics, which leave the unused operand of a masked operation undefined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <cpuid.h>
#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "nn/kernels/element.hpp"

#define TESSERA_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#define TESSERA_AVX512_INLINE TESSERA_AVX512 inline __attribute__((always_inline))

namespace tessera::nn::kernels {

template <typename T>
constexpr std::int64_t kPerUnit = sizeof(float) / sizeof(T);

TESSERA_AVX512_INLINE void transpose16(__m512i* r) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xDD);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xDD);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xDD);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xDD);
  }
}

TESSERA_AVX512_INLINE __m512i lane_numbers() { return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }

struct Unit {
  __m512i low, high;
};
// One unit of 32 lines that are contiguous; zeros where the mask is.
TESSERA_AVX512_INLINE Unit unit_of(const float* data, std::int64_t, __mmask32 mask) {
  return {_mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask), data),
          _mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask >> 16), data + 16)};
}
// Pairs (even's element i, odd's element i), i < 32.
TESSERA_AVX512_INLINE Unit pairs_of(__m512i even, __m512i odd) {
  // Lane 2i takes even's element i, lane 2i + 1 odd's (index 32 and up selects odd).
  const __m512i pairs = _mm512_add_epi32(_mm512_set1_epi32(32 << 16), _mm512_mullo_epi32(lane_numbers(), _mm512_set1_epi32(0x10001)));
  return {_mm512_permutex2var_epi16(even, pairs, odd),
          _mm512_permutex2var_epi16(even, _mm512_add_epi16(pairs, _mm512_set1_epi16(16)), odd)};
}
TESSERA_AVX512_INLINE Unit unit_of(const Bf16* data, std::int64_t depth_stride, __mmask32 mask) {
  return pairs_of(_mm512_maskz_loadu_epi16(mask, data), _mm512_maskz_loadu_epi16(mask, data + depth_stride));
}

// Element (line, depth) lies at data + line * line_stride + depth * depth_stride, where depth runs along k. Packs `lines`
// (<= width) lines into [unit][width], zeros for what is missing.
template <typename T>
TESSERA_AVX512 void pack(const T* data, std::int64_t line_stride, std::int64_t depth_stride, std::int64_t lines, std::int64_t depth,
                         std::int64_t width, float* out) {
  const std::int64_t units = (depth + kPerUnit<T> - 1) / kPerUnit<T>;
  const std::int64_t whole = depth / kPerUnit<T>;
  std::int64_t u = 0;
  if (lines == width && width == 32 && depth_stride == 1) {
    for (; u + 16 <= whole; u += 16) {
      for (int half = 0; half < 2; ++half) {
        __m512i block[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) block[i] = _mm512_loadu_si512(data + (16 * half + i) * line_stride + u * kPerUnit<T>);
        transpose16(block);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm512_storeu_si512(out + (u + i) * 32 + 16 * half, block[i]);
      }
    }
  } else if (line_stride == 1) {
    const __mmask32 mask = lines >= 32 ? 0xFFFFFFFFu : (1u << lines) - 1;
    // Narrow panels are written in whole registers; what spills over is overwritten by the next unit, or lies in the slack.
    for (; u < whole; ++u) {
      const auto [low, high] = unit_of(data + u * kPerUnit<T> * depth_stride, depth_stride, mask);
      _mm512_storeu_si512(out + u * width, low);
      if (width > 16) _mm512_storeu_si512(out + u * width + 16, high);
    }
  }
  T* elements = reinterpret_cast<T*>(out);
  for (; u < units; ++u) {
    for (std::int64_t line = 0; line < width; ++line) {
      for (std::int64_t p = 0; p < kPerUnit<T>; ++p) {
        const std::int64_t d = u * kPerUnit<T> + p;
        elements[(u * width + line) * kPerUnit<T> + p] = line < lines && d < depth ? data[line * line_stride + d * depth_stride] : T{};
      }
    }
  }
}

}  // namespace tessera::nn::kernels
