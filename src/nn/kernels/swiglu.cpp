#include "nn/kernels/swiglu.hpp"

#include <ATen/Parallel.h>

#include "nn/kernels/aten/kernels.hpp"
#include "nn/kernels/cuda/kernels.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/dispatch.hpp"

namespace tessera::nn::kernels {
namespace {

template <typename T>
TESSERA_INLINE void forward_row(const T* __restrict gate, const T* __restrict up, T* __restrict hidden, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) {
    const float g = load(gate[i]);
    store(hidden[i], g / (1.0f + fast_exp(-g)) * load(up[i]));
  }
}

template <typename T>
TESSERA_INLINE void backward_row(T* __restrict gate, T* __restrict up, T* __restrict hidden, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) {
    const float g = load(gate[i]);
    const float u = load(up[i]);
    const float d = load(hidden[i]);
    const float sigmoid = 1.0f / (1.0f + fast_exp(-g));
    const float silu = g * sigmoid;
    store(gate[i], d * u * (sigmoid + silu * (1.0f - sigmoid)));
    store(up[i], d * silu);
    store(hidden[i], silu * u);
  }
}

#define TESSERA_SWIGLU_ROWS(T)                                                                            \
  TESSERA_MULTIVERSION void forward(const T* gate_up, T* hidden, std::int64_t rows, std::int64_t width) { \
    for (std::int64_t r = 0; r < rows; ++r) {                                                             \
      forward_row(gate_up + 2 * r * width, gate_up + (2 * r + 1) * width, hidden + r * width, width);     \
    }                                                                                                     \
  }                                                                                                       \
  TESSERA_MULTIVERSION void backward(T* gate_up, T* hidden, std::int64_t rows, std::int64_t width) {      \
    for (std::int64_t r = 0; r < rows; ++r) {                                                             \
      backward_row(gate_up + 2 * r * width, gate_up + (2 * r + 1) * width, hidden + r * width, width);    \
    }                                                                                                     \
  }
TESSERA_SWIGLU_ROWS(float)
TESSERA_SWIGLU_ROWS(Bf16)
#undef TESSERA_SWIGLU_ROWS

}  // namespace

void swiglu(const at::Tensor& gate_up, at::Tensor& hidden) {
  const Kernels kernels = kernels_for(gate_up);
  if (kernels == Kernels::cuda) return cuda::swiglu(gate_up, hidden);
  if (kernels == Kernels::aten) return aten::swiglu(gate_up, hidden);
  const std::int64_t width = gate_up.size(1) / 2;
  dispatch(hidden, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, gate_up.size(0), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      forward(data<T>(gate_up) + 2 * begin * width, data<T>(hidden) + begin * width, end - begin, width);
    });
  });
}

void swiglu_backward(at::Tensor& gate_up, at::Tensor& hidden) {
  const Kernels kernels = kernels_for(gate_up);
  if (kernels == Kernels::cuda) return cuda::swiglu_backward(gate_up, hidden);
  if (kernels == Kernels::aten) return aten::swiglu_backward(gate_up, hidden);
  const std::int64_t width = gate_up.size(1) / 2;
  dispatch(hidden, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, gate_up.size(0), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      backward(data<T>(gate_up) + 2 * begin * width, data<T>(hidden) + begin * width, end - begin, width);
    });
  });
}

}  // namespace tessera::nn::kernels
