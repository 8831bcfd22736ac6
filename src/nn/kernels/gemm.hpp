// Matrix products on strided 2-d views.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn::kernels {

// c [m, n] = a [m, k] * b [k, n], or c += with `accumulate`; sums in f32. a and b have one dtype, f32 or bf16; c has theirs
// or is f32. Any of them may be a view whose rows or columns are contiguous (a transposed or a column slice); c's rows
// are. The same call gives the same bits at the same thread count.
void gemm(const at::Tensor& a, const at::Tensor& b, at::Tensor c, bool accumulate = false);

// The same by ATen, for CPUs that we have no kernels for; tests compare ours with it. A bf16 product into an f32 c is rounded to bf16 on
// its way.
void gemm_plain(const at::Tensor& a, const at::Tensor& b, at::Tensor c, bool accumulate = false);

}  // namespace tessera::nn::kernels
