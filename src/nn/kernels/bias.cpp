#include "nn/kernels/bias.hpp"

#include <ATen/Parallel.h>
#include <algorithm>
#include <vector>

#include "nn/kernels/dispatch.hpp"

namespace tessera::nn::kernels {
namespace {

template <typename T>
TESSERA_INLINE void add_rows(const T* dy, std::int64_t stride, std::int64_t rows, std::int64_t width, float* __restrict sums) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* row = dy + r * stride;
    for (std::int64_t i = 0; i < width; ++i) sums[i] += load(row[i]);
  }
}

TESSERA_MULTIVERSION void sum_rows(const float* dy, std::int64_t stride, std::int64_t rows, std::int64_t width, float* sums) {
  add_rows(dy, stride, rows, width, sums);
}
TESSERA_MULTIVERSION void sum_rows(const Bf16* dy, std::int64_t stride, std::int64_t rows, std::int64_t width, float* sums) {
  add_rows(dy, stride, rows, width, sums);
}

}  // namespace

void add_bias(at::Tensor y, const at::Tensor& bias) { y.add_(bias); }

void bias_backward(const at::Tensor& dy, const at::Tensor& bias_grad) {
  const std::int64_t rows = dy.size(0);
  const std::int64_t width = dy.size(1);
  // Fixed slabs of rows, summed in order.
  constexpr std::int64_t kSlab = 128;
  const std::int64_t slabs = (rows + kSlab - 1) / kSlab;
  std::vector<float> partial(static_cast<std::size_t>(slabs * width), 0.0f);
  dispatch(dy, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, slabs, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t s = begin; s < end; ++s)
        sum_rows(data<T>(dy) + s * kSlab * dy.stride(0), dy.stride(0), std::min(kSlab, rows - s * kSlab), width,
                 partial.data() + s * width);
    });
  });
  float* total = data<float>(bias_grad);
  for (std::int64_t s = 0; s < slabs; ++s)
    for (std::int64_t i = 0; i < width; ++i) total[i] += partial[static_cast<std::size_t>(s * width + i)];
}

}  // namespace tessera::nn::kernels
