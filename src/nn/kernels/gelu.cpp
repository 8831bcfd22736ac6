#include "nn/kernels/gelu.hpp"

#include <ATen/Parallel.h>

#include "nn/kernels/aten/kernels.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/dispatch.hpp"

namespace tessera::nn::kernels {
namespace {

// gelu(x) = x / 2 * (1 + tanh(u)) = x * sigmoid(2u), u = sqrt(2 / pi) * (x + 0.044715 x^3).
constexpr float kLinear = 2 * 0.7978845608028654f;
constexpr float kCubic = kLinear * 0.044715f;

TESSERA_INLINE float sigmoid_of(float x) { return 1.0f / (1.0f + fast_exp(-x * (kLinear + kCubic * x * x))); }

template <typename T>
TESSERA_INLINE void forward_row(const T* __restrict x, T* __restrict hidden, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) store(hidden[i], load(x[i]) * sigmoid_of(load(x[i])));
}

template <typename T>
TESSERA_INLINE void forward_row(const T* __restrict gate, const T* __restrict up, T* __restrict hidden, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) store(hidden[i], load(gate[i]) * sigmoid_of(load(gate[i])) * load(up[i]));
}

TESSERA_INLINE float slope_of(float x, float sigmoid) { return sigmoid + x * sigmoid * (1.0f - sigmoid) * (kLinear + 3 * kCubic * x * x); }

template <typename T>
TESSERA_INLINE void backward_row(T* __restrict x, T* __restrict hidden, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) {
    const float v = load(x[i]);
    const float sigmoid = sigmoid_of(v);
    store(x[i], load(hidden[i]) * slope_of(v, sigmoid));
    store(hidden[i], v * sigmoid);
  }
}

template <typename T>
TESSERA_INLINE void backward_row(T* __restrict gate, T* __restrict up, T* __restrict hidden, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) {
    const float g = load(gate[i]);
    const float u = load(up[i]);
    const float d = load(hidden[i]);
    const float sigmoid = sigmoid_of(g);
    store(gate[i], d * u * slope_of(g, sigmoid));
    store(up[i], d * g * sigmoid);
    store(hidden[i], g * sigmoid * u);
  }
}

#define TESSERA_GELU_ROWS(T)                                                                                    \
  TESSERA_MULTIVERSION void forward(const T* x, bool gated, T* hidden, std::int64_t rows, std::int64_t width) { \
    for (std::int64_t r = 0; r < rows; ++r) {                                                                   \
      if (gated)                                                                                                \
        forward_row(x + 2 * r * width, x + (2 * r + 1) * width, hidden + r * width, width);                     \
      else                                                                                                      \
        forward_row(x + r * width, hidden + r * width, width);                                                  \
    }                                                                                                           \
  }                                                                                                             \
  TESSERA_MULTIVERSION void backward(T* x, bool gated, T* hidden, std::int64_t rows, std::int64_t width) {      \
    for (std::int64_t r = 0; r < rows; ++r) {                                                                   \
      if (gated)                                                                                                \
        backward_row(x + 2 * r * width, x + (2 * r + 1) * width, hidden + r * width, width);                    \
      else                                                                                                      \
        backward_row(x + r * width, hidden + r * width, width);                                                 \
    }                                                                                                           \
  }
TESSERA_GELU_ROWS(float)
TESSERA_GELU_ROWS(Bf16)
#undef TESSERA_GELU_ROWS

template <typename Body>
void for_rows(const at::Tensor& x, const at::Tensor& hidden, const Body& body) {
  const std::int64_t width = hidden.size(1);
  const std::int64_t in = x.size(1);
  dispatch(hidden, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, hidden.size(0), row_grain(in), [&](std::int64_t begin, std::int64_t end) {
      body(data<T>(x) + begin * in, in == 2 * width, data<T>(hidden) + begin * width, end - begin, width);
    });
  });
}

}  // namespace

void gelu(const at::Tensor& x, at::Tensor& hidden) {
  if (!use_cpu_kernels(x)) return aten::gelu(x, hidden);
  for_rows(x, hidden,
           [](const auto* from, bool gated, auto* to, std::int64_t rows, std::int64_t width) { forward(from, gated, to, rows, width); });
}

void gelu_backward(at::Tensor& x, at::Tensor& hidden) {
  if (!use_cpu_kernels(x)) return aten::gelu_backward(x, hidden);
  for_rows(x, hidden,
           [](auto* from, bool gated, auto* to, std::int64_t rows, std::int64_t width) { backward(from, gated, to, rows, width); });
}

}  // namespace tessera::nn::kernels
