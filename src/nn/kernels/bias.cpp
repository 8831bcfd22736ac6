#include "nn/kernels/bias.hpp"

#include "nn/kernels/aten/kernels.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/dispatch.hpp"
#include "nn/kernels/slabs.hpp"

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
  if (!use_cpu_kernels(dy)) return aten::bias_backward(dy, bias_grad);
  const std::int64_t width = dy.size(1);
  const std::int64_t stride = dy.stride(0);
  dispatch(dy, [&](auto tag) {
    using T = decltype(tag);
    add_by_slabs(dy.size(0), width, data<float>(bias_grad), [&](std::int64_t first, std::int64_t rows, float* sums) {
      sum_rows(data<T>(dy) + first * stride, stride, rows, width, sums);
    });
  });
}

}  // namespace tessera::nn::kernels
