#include "nn/kernels/gemm.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <algorithm>
#include <limits>

#include "nn/kernels/aten/kernels.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/gemm_amx.hpp"
#include "nn/kernels/gemm_avx512.hpp"

namespace tessera::nn::kernels {
namespace {

// Below so many rows packing b costs more than it saves, and converting it.
constexpr std::int64_t kFewestRows = 2, kFewestWidened = 8;

Operand operand(const at::Tensor& matrix) { return {matrix.const_data_ptr(), matrix.stride(0), matrix.stride(1)}; }

struct Grid {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
};

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
// A share's extent: whole tiles.
std::int64_t share(std::int64_t extent, std::int64_t parts, std::int64_t tile) {
  return ceil_divide(ceil_divide(extent, tile), parts) * tile;
}

struct Tile {
  std::int64_t rows;
  std::int64_t columns;
  double results_a_cycle;  // products for each unit of k and each cycle
};
constexpr Tile kAvx512Tile{kGemmTileRows, kGemmTileColumns, 16}, kAmxTiles{kAmxTile, kAmxTile, 256};

// Each thread packs what its share needs, so a cut along one side repeats the packing of the other.
Grid choose_grid(const Product& p, const Tile& tile, std::int64_t threads) {
  Grid best;
  double least = std::numeric_limits<double>::infinity();
  const bool packs_a = p.a.column_stride != 1;
  for (std::int64_t rows = 1; rows <= threads; ++rows) {
    const std::int64_t columns = threads / rows;
    const double m = static_cast<double>(share(p.m, rows, tile.rows));
    const double n = static_cast<double>(share(p.n, columns, tile.columns));
    const double cost = m * n / tile.results_a_cycle + m * (packs_a ? 0.5 : 0.15) + n * 0.5;  // cycles per unit of k
    if (cost < least) {
      least = cost;
      best = {rows, columns};
    }
  }
  return best;
}

void run(const Product& whole, const Tile& tile, void (*kernel)(const Product&), std::int64_t a_size, std::int64_t b_size,
         std::int64_t c_size) {
  const Grid grid = choose_grid(whole, tile, at::in_parallel_region() ? 1 : at::get_num_threads());
  const std::int64_t rows = share(whole.m, grid.rows, tile.rows);
  const std::int64_t columns = share(whole.n, grid.columns, tile.columns);
  at::parallel_for(0, grid.rows * grid.columns, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t s = begin; s < end; ++s) {
      const std::int64_t i = s / grid.columns * rows;
      const std::int64_t j = s % grid.columns * columns;
      if (i >= whole.m || j >= whole.n) continue;
      Product part = whole;
      part.m = std::min(rows, whole.m - i);
      part.n = std::min(columns, whole.n - j);
      part.a.data = static_cast<const std::byte*>(whole.a.data) + i * whole.a.row_stride * a_size;
      part.b.data = static_cast<const std::byte*>(whole.b.data) + j * whole.b.column_stride * b_size;
      part.c = static_cast<std::byte*>(whole.c) + (i * whole.c_stride + j) * c_size;
      kernel(part);
    }
  });
}

// A product of bf16 matrices whose sums stay in 32 bits: what ATen does not have on CPUs, and where these have no 16-bit instructions
// does two to three times slower than in 32 bits. Piece by piece, so that little is held twice.
void widened(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, bool accumulate) {
  constexpr std::int64_t kRows = 256, kColumns = 512, kDepth = 256;
  const bool rounds = c.scalar_type() != at::kFloat;
  for (std::int64_t i = 0; i < a.size(0); i += kRows) {
    const std::int64_t rows = std::min(kRows, a.size(0) - i);
    for (std::int64_t j = 0; j < b.size(1); j += kColumns) {
      const std::int64_t columns = std::min(kColumns, b.size(1) - j);
      at::Tensor piece = c.narrow(0, i, rows).narrow(1, j, columns);
      at::Tensor sums = !rounds ? piece : accumulate ? piece.to(at::kFloat) : at::empty({rows, columns}, at::kFloat);
      for (std::int64_t k = 0; k < a.size(1); k += kDepth) {
        const std::int64_t depth = std::min(kDepth, a.size(1) - k);
        const at::Tensor left = a.narrow(0, i, rows).narrow(1, k, depth).to(at::kFloat);
        sums.addmm_(left, b.narrow(0, k, depth).narrow(1, j, columns).to(at::kFloat), accumulate || k > 0 ? 1 : 0);
      }
      if (rounds) piece.copy_(sums);
    }
  }
}

}  // namespace

void gemm_plain(const at::Tensor& a, const at::Tensor& b, at::Tensor c, bool accumulate) {
  const bool widens = a.scalar_type() == at::kBFloat16 && (c.scalar_type() == at::kFloat || !computes_bf16());
  if (widens && a.size(0) >= kFewestWidened) {
    widened(a, b, c, accumulate);
  } else if (a.scalar_type() == c.scalar_type()) {
    if (accumulate) {
      c.addmm_(a, b);
    } else {
      at::mm_out(c, a, b);
    }
  } else if (accumulate) {
    c.add_(at::mm(a, b));
  } else {
    c.copy_(at::mm(a, b));
  }
}

void gemm(const at::Tensor& a, const at::Tensor& b, at::Tensor c, bool accumulate) {
  if (!use_cpu_kernels(a)) return aten::gemm(a, b, c, accumulate);
  const bool f32 = a.scalar_type() == at::kFloat;
  if (a.size(0) < kFewestRows || !(f32 ? has_avx512() : has_avx512_bf16())) {
    gemm_plain(a, b, c, accumulate);
    return;
  }
  const Product product{a.size(0), b.size(1), a.size(1), operand(a), operand(b), c.data_ptr(), c.stride(0), accumulate};
  const bool into_f32 = c.scalar_type() == at::kFloat;
  if (f32) {
    run(product, kAvx512Tile, gemm_f32_avx512, 4, 4, 4);
  } else if (has_amx()) {
    run(product, kAmxTiles, into_f32 ? gemm_bf16_f32_amx : gemm_bf16_bf16_amx, 2, 2, into_f32 ? 4 : 2);
  } else {
    run(product, kAvx512Tile, into_f32 ? gemm_bf16_f32_avx512 : gemm_bf16_bf16_avx512, 2, 2, into_f32 ? 4 : 2);
  }
}

}  // namespace tessera::nn::kernels
