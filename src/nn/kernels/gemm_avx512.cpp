#include "nn/kernels/gemm_avx512.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "nn/kernels/element.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#include "nn/kernels/pack_avx512.hpp"
#include "nn/kernels/scratch.hpp"

namespace tessera::nn::kernels {
namespace {

constexpr std::int64_t kTileRows = kGemmTileRows;  // 28 accumulators, 2 registers of b, 1 of a: 31 of 32
constexpr std::int64_t kTileColumns = kGemmTileColumns;
constexpr std::int64_t kCopyColumns = 128;       // from here on a's rows are copied: strides of 4 KiB would share cache sets
constexpr std::int64_t kBlockUnits = 512;        // along k: a's rows of a tile stay in the first-level cache
constexpr std::int64_t kBlockBytes = 640 << 10;  // of packed b: most of the second-level cache
// Up to so many units, reading and writing c takes longer than multiplying: c is then walked along its rows, over many panels of b.
constexpr std::int64_t kShallowUnits = 128;
constexpr std::int64_t kRowsAtOnce = 128 * kTileRows;  // whose copies take a few megabytes of each thread
// Where b's columns are contiguous, a product of these many rows is done as the transposed one, which reads b as it lies: fewer rows would
// leave registers empty, and more pay for what it costs to pack b.
constexpr std::int64_t kLeastTransposed = kTileRows, kMostTransposed = kTileColumns;

template <typename T>
TESSERA_AVX512_INLINE __m512 multiply_add(__m512 a, __m512 b, __m512 sum) {
  if constexpr (std::is_same_v<T, float>) {
    return _mm512_fmadd_ps(a, b, sum);
  } else {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
}

TESSERA_AVX512_INLINE __m512 load_masked(const float* c, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, c); }
TESSERA_AVX512_INLINE __m512 load_masked(const Bf16* c, __mmask16 mask) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, c)), 16));
}
TESSERA_AVX512_INLINE void store_masked(float* c, __mmask16 mask, __m512 value) { _mm512_mask_storeu_ps(c, mask, value); }
TESSERA_AVX512_INLINE void store_masked(Bf16* c, __mmask16 mask, __m512 value) {
  _mm256_mask_storeu_epi16(c, mask, (__m256i)_mm512_cvtneps_pbh(value));
}

// What the memory brings while a tile is multiplied, which otherwise waits for it: a product of few rows reads b once, one of few columns
// a, and one of few units c.
struct Ahead {
  const float* a = nullptr;         // the next tile's rows
  const void* c = nullptr;          // the next tile of c, which will be added to
  const std::byte* data = nullptr;  // what the next panel is packed from: two cache lines for each unit
  // In bytes. Where lines of a panel run along k, a line's 16 pairs of cache lines lie side by side, and `stride` leads to the next line.
  std::int64_t stride = 0, second = 64;
  int pairs_shift = 0;

  TESSERA_AVX512_INLINE void fetch(std::int64_t unit) const {
    constexpr std::int64_t kPair = 128;
    const std::byte* place = data + (unit >> pairs_shift) * stride + (unit & ((std::int64_t{1} << pairs_shift) - 1)) * kPair;
    __builtin_prefetch(place, 0, 2);
    __builtin_prefetch(place + second, 0, 2);
  }
};

// Of the panel at element `b`.
template <typename T>
Ahead panel_ahead(const Operand& b, std::int64_t depth, std::int64_t column) {
  constexpr std::int64_t kSize = sizeof(T);
  Ahead ahead;
  ahead.data = static_cast<const std::byte*>(b.data) + (depth * b.row_stride + column * b.column_stride) * kSize;
  if (b.row_stride == 1) {
    ahead.stride = b.column_stride * kSize;
    ahead.pairs_shift = 4;
  } else {
    ahead.stride = b.row_stride * kSize * kPerUnit<T>;
    if (kSize < 4) ahead.second = b.row_stride * kSize;
  }
  return ahead;
}

enum class Left { packed, rows };                  // [unit][rows of the tile], or rows with a stride in units
enum class Right { panel, half_panel, in_place };  // packed [unit][32], of which 32 or 16 columns count, or with a stride in units

// A tile's place: kRows rows of a times up to 32 columns of b.
template <typename T, typename C, int kRows, Left kLeft, Right kRight>
TESSERA_AVX512 void tile(std::int64_t units, const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, C* c,
                         std::int64_t c_stride, std::int64_t columns, bool accumulate, const Ahead& ahead) {
  constexpr bool kWhole = kRight != Right::half_panel;
  if constexpr (kRight != Right::in_place) b_stride = kTileColumns;
  if (ahead.c != nullptr) {
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
      __builtin_prefetch(static_cast<const C*>(ahead.c) + i * c_stride, 1, 3);
      if (sizeof(C) == sizeof(float)) __builtin_prefetch(static_cast<const C*>(ahead.c) + i * c_stride + 16, 1, 3);
    }
  }
  __m512 left[kRows];
  __m512 right[kRows];
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) left[i] = right[i] = _mm512_setzero_ps();
  if constexpr (kLeft == Left::packed) {
    for (std::int64_t u = 0; u < units; ++u) {
      if (ahead.data != nullptr) ahead.fetch(u);
      const __m512 b0 = _mm512_loadu_ps(b);
      const __m512 b1 = kWhole ? _mm512_loadu_ps(b + 16) : b0;
#pragma GCC unroll 14
      for (int i = 0; i < kRows; ++i) {
        const __m512 value = _mm512_set1_ps(a[i]);
        left[i] = multiply_add<T>(value, b0, left[i]);
        if constexpr (kWhole) right[i] = multiply_add<T>(value, b1, right[i]);
      }
      a += kRows;
      b += b_stride;
    }
  } else {
    // Rows in groups of three share a base, so that all addresses fit the registers.
    constexpr int kGroups = (kRows + 2) / 3;
    const float* base[kGroups];
#pragma GCC unroll 5
    for (int g = 0; g < kGroups; ++g) base[g] = a + 3 * g * a_stride;
    for (std::int64_t u = 0; u < units; ++u) {
      if (ahead.data != nullptr) ahead.fetch(u);
      if (ahead.a != nullptr) __builtin_prefetch(ahead.a + (u & 15) * a_stride + (u & ~std::int64_t{15}), 0, 2);
      const __m512 b0 = _mm512_loadu_ps(b);
      const __m512 b1 = kWhole ? _mm512_loadu_ps(b + 16) : b0;
#pragma GCC unroll 14
      for (int i = 0; i < kRows; ++i) {
        const __m512 value = _mm512_set1_ps(base[i / 3][(i % 3) * a_stride]);
        left[i] = multiply_add<T>(value, b0, left[i]);
        if constexpr (kWhole) right[i] = multiply_add<T>(value, b1, right[i]);
      }
#pragma GCC unroll 5
      for (int g = 0; g < kGroups; ++g) {
        ++base[g];
        __asm__("" : "+r"(base[g]));  // keeps the compiler from deriving one base from another
      }
      b += b_stride;
    }
  }
  const __mmask16 left_mask = columns >= 16 ? 0xFFFF : static_cast<__mmask16>((1u << columns) - 1);
  const __mmask16 right_mask = columns >= 32 ? 0xFFFF : columns <= 16 ? 0 : static_cast<__mmask16>((1u << (columns - 16)) - 1);
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
    C* row = c + i * c_stride;
    if (accumulate) {
      left[i] = _mm512_add_ps(left[i], load_masked(row, left_mask));
      right[i] = _mm512_add_ps(right[i], load_masked(row + 16, right_mask));
    }
    store_masked(row, left_mask, left[i]);
    store_masked(row + 16, right_mask, right[i]);
  }
}

template <typename T, typename C, Left kLeft, Right kRight = Right::panel, int kRows = static_cast<int>(kTileRows)>
TESSERA_AVX512 inline void tile_of(int rows, std::int64_t units, const float* a, std::int64_t a_stride, const float* b,
                                   std::int64_t b_stride, C* c, std::int64_t c_stride, std::int64_t columns, bool accumulate,
                                   const Ahead& ahead = {}) {
  if constexpr (kRows > 1) {
    if (rows < kRows)
      return tile_of<T, C, kLeft, kRight, kRows - 1>(rows, units, a, a_stride, b, b_stride, c, c_stride, columns, accumulate, ahead);
  }
  tile<T, C, kRows, kLeft, kRight>(units, a, a_stride, b, b_stride, c, c_stride, columns, accumulate, ahead);
}

// Sums over k go to C directly. The caller sees to it that C is f32 when k takes several blocks.
template <typename T, typename C>
TESSERA_AVX512 void product_of(const Product& p, C* c, std::int64_t c_stride, bool accumulate) {
  if (p.m > kRowsAtOnce) {
    for (std::int64_t i = 0; i < p.m; i += kRowsAtOnce) {
      Product part = p;
      part.m = std::min(kRowsAtOnce, p.m - i);
      part.a.data = static_cast<const T*>(p.a.data) + i * p.a.row_stride;
      product_of<T, C>(part, c + i * c_stride, c_stride, accumulate);
    }
    return;
  }
  const T* a = static_cast<const T*>(p.a.data);
  const T* b = static_cast<const T*>(p.b.data);
  const std::int64_t depth_block = kBlockUnits * kPerUnit<T>;
  const std::int64_t tiles = (p.m + kTileRows - 1) / kTileRows;
  const std::int64_t tile_rows = (p.m + tiles - 1) / tiles;  // of few rows a tile waits for its own sums
  // a is read where it lies when its rows are contiguous along k and whole units.
  const bool direct = p.a.column_stride == 1 && p.k % kPerUnit<T> == 0 && p.a.row_stride % kPerUnit<T> == 0 &&
                      reinterpret_cast<std::uintptr_t>(a) % sizeof(float) == 0;
  for (std::int64_t k0 = 0; k0 < p.k; k0 += depth_block) {
    const std::int64_t depth = std::min(depth_block, p.k - k0);
    const std::int64_t units = (depth + kPerUnit<T> - 1) / kPerUnit<T>;
    const bool shallow = units <= kShallowUnits;
    const std::int64_t column_block = shallow ? kBlockBytes / (units * 4) / kTileColumns * kTileColumns : kTileColumns;
    const bool add = accumulate || k0 > 0;
    float* packed_a = direct ? nullptr : scratch(0, (p.m + kTileRows) * units + 16);
    if (!direct) {
      for (std::int64_t i = 0; i < p.m; i += tile_rows) {
        const std::int64_t rows = std::min(tile_rows, p.m - i);
        pack(a + i * p.a.row_stride + k0 * p.a.column_stride, p.a.row_stride, p.a.column_stride, rows, depth, rows, packed_a + i * units);
      }
    }
    const float* rows_at = direct ? reinterpret_cast<const float*>(a + k0) : packed_a;
    std::int64_t row_stride = direct ? p.a.row_stride / kPerUnit<T> : units;
    if (direct && p.n >= kCopyColumns) {
      const std::int64_t copied_stride = (units + 15) / 16 * 16 + 16;
      float* copied = scratch(0, p.m * copied_stride);
      for (std::int64_t i = 0; i < p.m; ++i)
        std::memcpy(copied + i * copied_stride, rows_at + i * row_stride, static_cast<std::size_t>(units) * 4);
      rows_at = copied;
      row_stride = copied_stride;
    }
    for (std::int64_t j0 = 0; j0 < p.n; j0 += column_block) {
      const std::int64_t columns = std::min(column_block, p.n - j0);
      // One tile reads b once, which costs less than packing it.
      const bool in_place = std::is_same_v<T, float> && direct && tiles == 1 && p.b.column_stride == 1 && columns % kTileColumns == 0;
      float* packed_b = in_place ? nullptr : scratch(1, (columns + kTileColumns) * units);
      for (std::int64_t j = 0; j < columns && !in_place; j += kTileColumns) {
        pack(b + k0 * p.b.row_stride + (j0 + j) * p.b.column_stride, p.b.column_stride, p.b.row_stride, std::min(kTileColumns, columns - j),
             depth, kTileColumns, packed_b + j * units);
      }
      for (std::int64_t i = 0; i < p.m; i += tile_rows) {
        const int rows = static_cast<int>(std::min(tile_rows, p.m - i));
        Ahead ahead;
        if (!shallow && i == 0 && j0 + column_block < p.n) ahead = panel_ahead<T>(p.b, k0, j0 + column_block);
        for (std::int64_t j = 0; j < columns; j += kTileColumns) {
          C* place = c + i * c_stride + j0 + j;
          const std::int64_t width = std::min(kTileColumns, columns - j);
          if (add) ahead.c = place + (shallow ? kTileColumns : tile_rows * c_stride);
          const float* rows_of_tile = rows_at + i * row_stride;
          const float* panel = in_place ? reinterpret_cast<const float*>(b + k0 * p.b.row_stride + j0 + j) : packed_b + j * units;
          if (direct && p.n <= kTileColumns) ahead.a = rows_of_tile + tile_rows * row_stride;
          if (!direct) {
            tile_of<T, C, Left::packed>(rows, units, rows_of_tile, 0, panel, 0, place, c_stride, width, add, ahead);
          } else if (in_place) {
            tile_of<T, C, Left::rows, Right::in_place>(rows, units, rows_of_tile, row_stride, panel, p.b.row_stride, place, c_stride, width,
                                                       add, ahead);
          } else if (width <= kTileColumns / 2) {
            tile_of<T, C, Left::rows, Right::half_panel>(rows, units, rows_of_tile, row_stride, panel, 0, place, c_stride, width, add,
                                                         ahead);
          } else {
            tile_of<T, C, Left::rows>(rows, units, rows_of_tile, row_stride, panel, 0, place, c_stride, width, add, ahead);
          }
        }
      }
    }
  }
}

// c [rows, columns] becomes the transpose of `from` [columns, rows].
TESSERA_AVX512 void transpose(const float* from, std::int64_t rows, std::int64_t columns, float* c, std::int64_t c_stride) {
  for (std::int64_t i = 0; i < rows; i += 16) {
    for (std::int64_t j = 0; j < columns; j += 16) {
      const std::int64_t height = std::min<std::int64_t>(16, rows - i), width = std::min<std::int64_t>(16, columns - j);
      __m512i block[16] = {};
      for (std::int64_t line = 0; line < width; ++line)
        block[line] = _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << height) - 1), from + (j + line) * rows + i);
      transpose16(block);
      for (std::int64_t line = 0; line < height; ++line)
        _mm512_mask_storeu_epi32(c + (i + line) * c_stride + j, static_cast<__mmask16>((1u << width) - 1), block[line]);
    }
  }
}

TESSERA_AVX512 void round_to_bf16(const float* sums, const Product& p) {
  Bf16* c = static_cast<Bf16*>(p.c);
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; j += 16) {
      const __mmask16 mask = p.n - j >= 16 ? 0xFFFF : static_cast<__mmask16>((1u << (p.n - j)) - 1);
      Bf16* place = c + i * p.c_stride + j;
      __m512 value = load_masked(sums + i * p.n + j, mask);
      if (p.accumulate) value = _mm512_add_ps(value, load_masked(place, mask));
      store_masked(place, mask, value);
    }
  }
}

}  // namespace

template <typename T, typename C>
void multiply_tile(int rows, std::int64_t units, const float* a, std::int64_t a_stride, const float* panel, C* c, std::int64_t c_stride,
                   std::int64_t columns, bool accumulate) {
  tile_of<T, C, Left::rows>(rows, units, a, a_stride, panel, 0, c, c_stride, columns, accumulate);
}
template void multiply_tile<float, float>(int, std::int64_t, const float*, std::int64_t, const float*, float*, std::int64_t, std::int64_t,
                                          bool);
template void multiply_tile<Bf16, float>(int, std::int64_t, const float*, std::int64_t, const float*, float*, std::int64_t, std::int64_t,
                                         bool);
template void multiply_tile<Bf16, Bf16>(int, std::int64_t, const float*, std::int64_t, const float*, Bf16*, std::int64_t, std::int64_t,
                                        bool);

template <typename T>
void pack_panel(const T* data, std::int64_t line_stride, std::int64_t depth_stride, std::int64_t lines, std::int64_t depth, float* panel) {
  pack(data, line_stride, depth_stride, lines, depth, kTileColumns, panel);
}
template void pack_panel<float>(const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*);
template void pack_panel<Bf16>(const Bf16*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*);

bool has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512dq");
  return has;
}

bool computes_bf16() { return __builtin_cpu_supports("avx512bf16"); }

bool has_avx512_bf16() { return has_avx512() && computes_bf16(); }

void gemm_f32_avx512(const Product& p) {
  float* c = static_cast<float*>(p.c);
  if (p.b.row_stride == 1 && p.m >= kLeastTransposed && p.m <= kMostTransposed && !p.accumulate) {
    float* sums = scratch(2, p.m * p.n);
    const Operand rows{p.b.data, p.b.column_stride, 1}, columns{p.a.data, p.a.column_stride, p.a.row_stride};
    product_of<float, float>({p.n, p.m, p.k, rows, columns, sums, p.m, false}, sums, p.m, false);
    transpose(sums, p.m, p.n, c, p.c_stride);
  } else {
    product_of<float, float>(p, c, p.c_stride, p.accumulate);
  }
}

void gemm_bf16_f32_avx512(const Product& p) { product_of<Bf16, float>(p, static_cast<float*>(p.c), p.c_stride, p.accumulate); }

void gemm_bf16_bf16_avx512(const Product& p) {
  if (p.k <= kBlockUnits * kPerUnit<Bf16>) {
    product_of<Bf16, Bf16>(p, static_cast<Bf16*>(p.c), p.c_stride, p.accumulate);
    return;
  }
  float* sums = scratch(2, p.m * p.n);
  product_of<Bf16, float>(p, sums, p.n, false);
  round_to_bf16(sums, p);
}

}  // namespace tessera::nn::kernels

#else

namespace tessera::nn::kernels {

bool has_avx512() { return false; }
bool computes_bf16() { return true; }
bool has_avx512_bf16() { return false; }
void gemm_f32_avx512(const Product&) {}
void gemm_bf16_f32_avx512(const Product&) {}
void gemm_bf16_bf16_avx512(const Product&) {}
template <typename T, typename C>
void multiply_tile(int, std::int64_t, const float*, std::int64_t, const float*, C*, std::int64_t, std::int64_t, bool) {}
template void multiply_tile<float, float>(int, std::int64_t, const float*, std::int64_t, const float*, float*, std::int64_t, std::int64_t,
                                          bool);
template void multiply_tile<Bf16, float>(int, std::int64_t, const float*, std::int64_t, const float*, float*, std::int64_t, std::int64_t,
                                         bool);
template void multiply_tile<Bf16, Bf16>(int, std::int64_t, const float*, std::int64_t, const float*, Bf16*, std::int64_t, std::int64_t,
                                        bool);
template <typename T>
void pack_panel(const T*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*) {}
template void pack_panel<float>(const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*);
template void pack_panel<Bf16>(const Bf16*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*);

}  // namespace tessera::nn::kernels

#endif
