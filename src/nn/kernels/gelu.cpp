#include "nn/kernels/gelu.hpp"

#include <ATen/Parallel.h>

#include "nn/kernels/aten/kernels.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/dispatch.hpp"

namespace tessera::nn::kernels {
namespace {

// gelu(x) = x * share(x); slope is its derivative, of that share.
struct Tanh {
  // x / 2 * (1 + tanh(u)) = x * sigmoid(2u), u = sqrt(2 / pi) * (x + 0.044715 x^3).
  static constexpr float kLinear = 2 * 0.7978845608028654f;
  static constexpr float kCubic = kLinear * 0.044715f;

  static TESSERA_INLINE float share(float x) { return 1.0f / (1.0f + fast_exp(-x * (kLinear + kCubic * x * x))); }
  static TESSERA_INLINE float slope(float x, float share) { return share + x * share * (1.0f - share) * (kLinear + 3 * kCubic * x * x); }
};

struct Exact {
  static TESSERA_INLINE float density(float x) { return 0.3989422804014327f * fast_exp(-0.5f * x * x); }
  // The normal distribution function within 1e-7: of |x|, its tail is the density times a polynomial (Abramowitz and Stegun 1964, 26.2.17).
  static TESSERA_INLINE float share(float x) {
    const float t = 1.0f / (1.0f + 0.2316419f * (x < 0.0f ? -x : x));
    float p = 1.330274429f;
    p = p * t - 1.821255978f;
    p = p * t + 1.781477937f;
    p = p * t - 0.356563782f;
    p = p * t + 0.319381530f;
    const float tail = density(x) * p * t;
    return x < 0.0f ? tail : 1.0f - tail;
  }
  static TESSERA_INLINE float slope(float x, float share) { return share + x * density(x); }
};

template <typename Form, typename T>
TESSERA_INLINE void forward_row(const T* __restrict x, T* __restrict hidden, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) store(hidden[i], load(x[i]) * Form::share(load(x[i])));
}

template <typename Form, typename T>
TESSERA_INLINE void forward_row(const T* __restrict gate, const T* __restrict up, T* __restrict hidden, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) store(hidden[i], load(gate[i]) * Form::share(load(gate[i])) * load(up[i]));
}

template <typename Form, typename T>
TESSERA_INLINE void backward_row(T* __restrict x, T* __restrict hidden, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) {
    const float v = load(x[i]);
    const float share = Form::share(v);
    store(x[i], load(hidden[i]) * Form::slope(v, share));
    store(hidden[i], v * share);
  }
}

template <typename Form, typename T>
TESSERA_INLINE void backward_row(T* __restrict gate, T* __restrict up, T* __restrict hidden, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) {
    const float g = load(gate[i]);
    const float u = load(up[i]);
    const float d = load(hidden[i]);
    const float share = Form::share(g);
    store(gate[i], d * u * Form::slope(g, share));
    store(up[i], d * g * share);
    store(hidden[i], g * share * u);
  }
}

#define TESSERA_GELU_ROWS(Form, T)                                                                                    \
  TESSERA_MULTIVERSION void forward(Form, const T* x, bool gated, T* hidden, std::int64_t rows, std::int64_t width) { \
    for (std::int64_t r = 0; r < rows; ++r) {                                                                         \
      if (gated)                                                                                                      \
        forward_row<Form>(x + 2 * r * width, x + (2 * r + 1) * width, hidden + r * width, width);                     \
      else                                                                                                            \
        forward_row<Form>(x + r * width, hidden + r * width, width);                                                  \
    }                                                                                                                 \
  }                                                                                                                   \
  TESSERA_MULTIVERSION void backward(Form, T* x, bool gated, T* hidden, std::int64_t rows, std::int64_t width) {      \
    for (std::int64_t r = 0; r < rows; ++r) {                                                                         \
      if (gated)                                                                                                      \
        backward_row<Form>(x + 2 * r * width, x + (2 * r + 1) * width, hidden + r * width, width);                    \
      else                                                                                                            \
        backward_row<Form>(x + r * width, hidden + r * width, width);                                                 \
    }                                                                                                                 \
  }
TESSERA_GELU_ROWS(Tanh, float)
TESSERA_GELU_ROWS(Tanh, Bf16)
TESSERA_GELU_ROWS(Exact, float)
TESSERA_GELU_ROWS(Exact, Bf16)
#undef TESSERA_GELU_ROWS

// Runs body(Form, some rows of x, whether a gate is among them, the same of hidden, how many, their width).
template <typename Body>
void for_rows(const at::Tensor& x, const at::Tensor& hidden, GeluForm form, const Body& body) {
  const std::int64_t width = hidden.size(1);
  const std::int64_t in = x.size(1);
  dispatch(hidden, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, hidden.size(0), row_grain(in), [&](std::int64_t begin, std::int64_t end) {
      const auto run = [&](auto of) {
        body(of, data<T>(x) + begin * in, in == 2 * width, data<T>(hidden) + begin * width, end - begin, width);
      };
      if (form == GeluForm::tanh)
        run(Tanh());
      else
        run(Exact());
    });
  });
}

}  // namespace

void gelu(const at::Tensor& x, at::Tensor& hidden, GeluForm form) {
  if (!use_cpu_kernels(x)) return aten::gelu(x, hidden, form);
  for_rows(x, hidden, form, [](auto of, const auto* from, bool gated, auto* to, std::int64_t rows, std::int64_t width) {
    forward(of, from, gated, to, rows, width);
  });
}

void gelu_backward(at::Tensor& x, at::Tensor& hidden, GeluForm form) {
  if (!use_cpu_kernels(x)) return aten::gelu_backward(x, hidden, form);
  for_rows(x, hidden, form, [](auto of, auto* from, bool gated, auto* to, std::int64_t rows, std::int64_t width) {
    backward(of, from, gated, to, rows, width);
  });
}

}  // namespace tessera::nn::kernels
