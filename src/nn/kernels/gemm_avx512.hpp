// Internal: one thread's share of a matrix product for CPUs with AVX-512, in the manner of Goto and van de Geijn (2008): a
// 14 x 32 tile of c in registers, panels of b packed into the second-level cache; of few rows b is read as it lies, where its layout
// allows.
//
// Both element types run the same loops over 32-bit units: one f32, or two bf16 that are neighbours along k (which
// vdpbf16ps multiplies and adds in f32).
#pragma once

#include <cstdint>

namespace tessera::nn::kernels {

// Element (i, j) lies at data + i * row_stride + j * column_stride (in elements); one of the strides is 1.
struct Operand {
  const void* data;
  std::int64_t row_stride;
  std::int64_t column_stride;
};

struct Product {
  std::int64_t m, n, k;
  Operand a;  // [m, k]
  Operand b;  // [k, n]
  void* c;    // [m, n], columns contiguous
  std::int64_t c_stride;
  bool accumulate;
};

constexpr std::int64_t kGemmTileRows = 14;
constexpr std::int64_t kGemmTileColumns = 32;

bool has_avx512();
// Whether the CPU, as far as we know, multiplies bf16 no slower than f32.
bool computes_bf16();
bool has_avx512_bf16();  // vdpbf16ps

// The pieces, for kernels that fuse something between two products. T is float or Bf16, C float or (for Bf16) Bf16.
//
// c [rows <= 14, columns <= 32] = a * panel, or += : a's rows are contiguous along k, `a_stride` units apart.
template <typename T, typename C>
void multiply_tile(int rows, std::int64_t units, const float* a, std::int64_t a_stride, const float* panel, C* c, std::int64_t c_stride,
                   std::int64_t columns, bool accumulate);
// A panel [unit][32] of b: element (line, depth), with depth along k, lies at data + line * line_stride + depth * depth_stride.
template <typename T>
void pack_panel(const T* data, std::int64_t line_stride, std::int64_t depth_stride, std::int64_t lines, std::int64_t depth, float* panel);

// c's element: sums do not depend on how a product was cut into shares along m and n.
void gemm_f32_avx512(const Product& product);
void gemm_bf16_f32_avx512(const Product& product);
void gemm_bf16_bf16_avx512(const Product& product);

}  // namespace tessera::nn::kernels
