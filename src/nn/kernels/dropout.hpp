// Dropout (Srivastava et al. 2014) whose masks depend on seeds and places alone, so that nothing needs to be kept of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <vector>

namespace tessera::nn::kernels {

// out = x, of which each element is dropped with `probability` and otherwise divided by 1 - probability. x is [samples, ...], contiguous,
// f32 or bf16; element i of sample s is dropped or not by seeds[s] and i alone. `out` may be x. The probability is rounded to 1 / 65536.
void dropout(const at::Tensor& x, double probability, const std::vector<std::uint64_t>& seeds, at::Tensor& out);

// Where the elements of a row stand among those of a sample.
struct RowPlace {
  std::uint64_t seed;
  std::int64_t first;
};
// The same for x [rows, width]: element i of row r is element places[r].first + i of a sample whose seed is places[r].seed.
void dropout_rows(const at::Tensor& x, double probability, const std::vector<RowPlace>& places, at::Tensor& out);

}  // namespace tessera::nn::kernels
