#include "nn/kernels/gemm_amx.hpp"

#include <algorithm>
#include <type_traits>

#include "nn/kernels/element.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include "nn/kernels/pack_avx512.hpp"
#include "nn/kernels/scratch.hpp"

#define TESSERA_AMX __attribute__((target("amx-tile,amx-bf16"), noinline))

namespace tessera::nn::kernels {
namespace {

// A step multiplies 32 elements along k, which are 16 units: two tiles of a, [16 rows][16 units] each, by two of b, [16 units][16 columns].
constexpr std::int64_t kStepDepth = 32, kStepUnits = 16;
constexpr std::int64_t kStepA = kAmxTile * kStepUnits;  // floats
constexpr std::int64_t kBlockSteps = 16;                // of a's rows, which stay in the first-level cache
constexpr std::int64_t kMostDepth = 4096;               // whose b is packed at once
constexpr std::int64_t kBlockBytes = 1 << 20;           // of packed b: half of the second-level cache

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

TESSERA_AMX void configure_tiles() {
  struct alignas(64) Config {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static const Config config;
  _tile_loadconfig(&config);
}

TESSERA_AMX void release_tiles() { _tile_release(); }

// c [32, 32] = a * b over so many steps, or += : the intrinsics do not say that they read and write memory.
TESSERA_AMX void multiply(std::int64_t steps, const float* a, const float* b, float* c, std::int64_t c_stride, bool adds) {
  const std::int64_t stride = c_stride * 4;
  float* const lower = c + 16 * c_stride;
  __asm__ volatile("" ::: "memory");
  if (adds) {
    _tile_loadd(0, c, stride);
    _tile_loadd(1, c + 16, stride);
    _tile_loadd(2, lower, stride);
    _tile_loadd(3, lower + 16, stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t s = 0; s < steps; ++s) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 128);
    _tile_loadd(7, b + 16, 128);
    _tile_loadd(5, a + kStepA / 2, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    a += kStepA;
    b += kStepUnits * kAmxTile;
  }
  _tile_stored(0, c, stride);
  _tile_stored(1, c + 16, stride);
  _tile_stored(2, lower, stride);
  _tile_stored(3, lower + 16, stride);
  __asm__ volatile("" ::: "memory");
}

// `rows` <= 32 rows of a, zeros for what is missing, into [step][32 rows][16 units].
TESSERA_AVX512 void pack_rows(const Bf16* a, std::int64_t row_stride, std::int64_t column_stride, std::int64_t rows, std::int64_t depth,
                              float* out) {
  for (std::int64_t k = 0; k < depth; k += kStepDepth, out += kStepA) {
    const std::int64_t width = std::min(kStepDepth, depth - k);
    if (column_stride == 1) {
      const __mmask32 mask = width == kStepDepth ? 0xFFFFFFFFu : (1u << width) - 1;
      for (std::int64_t row = 0; row < kAmxTile; ++row) {
        _mm512_store_si512(out + row * kStepUnits,
                           row < rows ? _mm512_maskz_loadu_epi16(mask, a + row * row_stride + k) : _mm512_setzero_si512());
      }
      continue;
    }
    const __mmask32 mask = rows == kAmxTile ? 0xFFFFFFFFu : (1u << rows) - 1;
    __m512i upper[kStepUnits], lower[kStepUnits];
    for (std::int64_t u = 0; u < kStepUnits; ++u) {
      const Bf16* even = a + (k + 2 * u) * column_stride;
      const bool has_even = 2 * u < width, has_odd = 2 * u + 1 < width;
      const auto [first, second] = pairs_of(has_even ? _mm512_maskz_loadu_epi16(mask, even) : _mm512_setzero_si512(),
                                            has_odd ? _mm512_maskz_loadu_epi16(mask, even + column_stride) : _mm512_setzero_si512());
      upper[u] = first;
      lower[u] = second;
    }
    transpose16(upper);
    transpose16(lower);
    for (std::int64_t row = 0; row < 16; ++row) {
      _mm512_store_si512(out + row * kStepUnits, upper[row]);
      _mm512_store_si512(out + (16 + row) * kStepUnits, lower[row]);
    }
  }
}

TESSERA_AVX512_INLINE __m512 widened(const float* from, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, from); }
TESSERA_AVX512_INLINE __m512 widened(const Bf16* from, __mmask16 mask) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
}
TESSERA_AVX512_INLINE void narrowed(float* to, __mmask16 mask, __m512 value) { _mm512_mask_storeu_ps(to, mask, value); }
TESSERA_AVX512_INLINE void narrowed(Bf16* to, __mmask16 mask, __m512 value) {
  _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(value));
}

template <typename C>
TESSERA_AVX512 void write_rows(const float* sums, std::int64_t sums_stride, C* c, std::int64_t c_stride, std::int64_t rows,
                               std::int64_t columns, bool adds) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; j += 16) {
      const __mmask16 mask = columns - j >= 16 ? 0xFFFF : static_cast<__mmask16>((1u << (columns - j)) - 1);
      __m512 value = _mm512_load_ps(sums + i * sums_stride + j);
      if (adds) value = _mm512_add_ps(value, widened(c + i * c_stride + j, mask));
      narrowed(c + i * c_stride + j, mask, value);
    }
  }
}

// c = a * b over p.k <= kMostDepth, or +=.
template <typename C>
void product_of(const Product& p, C* c, std::int64_t c_stride, bool accumulate) {
  const Bf16* a = static_cast<const Bf16*>(p.a.data);
  const Bf16* b = static_cast<const Bf16*>(p.b.data);
  const std::int64_t steps = ceil_divide(p.k, kStepDepth);
  const std::int64_t units = ceil_divide(p.k, 2), panel = steps * kStepUnits * kAmxTile;
  const std::int64_t column_block = std::max(kAmxTile, kBlockBytes / (steps * kStepUnits * 4) / kAmxTile * kAmxTile);
  const std::int64_t panels = ceil_divide(std::min(column_block, p.n), kAmxTile);
  const std::int64_t sums_stride = panels * kAmxTile + 16;  // the odd part keeps the rows of a tile out of each other's cache sets
  float* const packed_a = scratch(3, steps * kStepA);
  float* const packed_b = scratch(4, panels * panel);
  float* const sums = scratch(5, kAmxTile * sums_stride);
  for (std::int64_t j0 = 0; j0 < p.n; j0 += column_block) {
    const std::int64_t columns = std::min(column_block, p.n - j0);
    for (std::int64_t j = 0; j < columns; j += kAmxTile) {
      float* const to = packed_b + j / kAmxTile * panel;
      pack(b + (j0 + j) * p.b.column_stride, p.b.column_stride, p.b.row_stride, std::min(kAmxTile, columns - j), p.k, kAmxTile, to);
      std::fill(to + units * kAmxTile, to + panel, 0.0f);
    }
    for (std::int64_t i = 0; i < p.m; i += kAmxTile) {
      const std::int64_t rows = std::min(kAmxTile, p.m - i);
      C* const place = c + i * c_stride + j0;
      pack_rows(a + i * p.a.row_stride, p.a.row_stride, p.a.column_stride, rows, p.k, packed_a);
      // Whole tiles of f32 are summed where they belong.
      const std::int64_t in_place = std::is_same_v<C, float> && rows == kAmxTile ? columns / kAmxTile * kAmxTile : 0;
      for (std::int64_t s = 0; s < steps; s += kBlockSteps) {
        const std::int64_t count = std::min(kBlockSteps, steps - s);
        for (std::int64_t j = 0; j < columns; j += kAmxTile) {
          const float* const right = packed_b + j / kAmxTile * panel + s * kStepUnits * kAmxTile;
          if constexpr (std::is_same_v<C, float>) {
            if (j < in_place) {
              multiply(count, packed_a + s * kStepA, right, place + j, c_stride, accumulate || s > 0);
              continue;
            }
          }
          multiply(count, packed_a + s * kStepA, right, sums + j, sums_stride, s > 0);
        }
      }
      if (in_place < columns) write_rows(sums + in_place, sums_stride, place + in_place, c_stride, rows, columns - in_place, accumulate);
    }
  }
}

// Piece by piece along k.
void sum_in_f32(const Product& p, float* c, std::int64_t c_stride, bool accumulate) {
  Product piece = p;
  for (std::int64_t k = 0; k < p.k; k += kMostDepth) {
    piece.k = std::min(kMostDepth, p.k - k);
    piece.a.data = static_cast<const Bf16*>(p.a.data) + k * p.a.column_stride;
    piece.b.data = static_cast<const Bf16*>(p.b.data) + k * p.b.row_stride;
    product_of(piece, c, c_stride, accumulate || k > 0);
  }
}

}  // namespace

bool has_amx() {
  static const bool has = [] {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    constexpr unsigned kTiles = (1u << 22) | (1u << 24);         // AMX-BF16, AMX-TILE
    unsigned a = 0, b = 0, c = 0, d = 0;
    return has_avx512() && __builtin_cpu_supports("avx512bf16") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTiles) == kTiles &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}

void gemm_bf16_f32_amx(const Product& p) {
  configure_tiles();
  sum_in_f32(p, static_cast<float*>(p.c), p.c_stride, p.accumulate);
  release_tiles();
}

void gemm_bf16_bf16_amx(const Product& p) {
  configure_tiles();
  Bf16* const c = static_cast<Bf16*>(p.c);
  if (p.k <= kMostDepth) {
    product_of(p, c, p.c_stride, p.accumulate);
  } else {
    const std::int64_t stride = ceil_divide(p.n, 16) * 16;
    float* const sums = scratch(2, p.m * stride);
    sum_in_f32(p, sums, stride, false);
    write_rows(sums, stride, c, p.c_stride, p.m, p.n, p.accumulate);
  }
  release_tiles();
}

}  // namespace tessera::nn::kernels

#else

namespace tessera::nn::kernels {

bool has_amx() { return false; }
void gemm_bf16_f32_amx(const Product&) {}
void gemm_bf16_bf16_amx(const Product&) {}

}  // namespace tessera::nn::kernels

#endif
