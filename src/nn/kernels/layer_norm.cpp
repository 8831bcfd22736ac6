#include "nn/kernels/layer_norm.hpp"

#include <ATen/Parallel.h>
#include <cmath>

#include "nn/kernels/aten/kernels.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/dispatch.hpp"
#include "nn/kernels/slabs.hpp"

namespace tessera::nn::kernels {
namespace {

// Of f(x[i]).
template <typename T, typename Function>
TESSERA_INLINE float row_sum(const T* x, std::int64_t width, const Function& f) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] += f(load(x[i + l]));
  for (; i < width; ++i) lanes[i % kLanes] += f(load(x[i]));
  return sum_lanes(lanes);
}

template <typename T>
TESSERA_INLINE void normalize_row(const T* x, const T* weight, const T* bias, const float* statistics, T* y, std::int64_t width) {
  const float mean = statistics[0];
  const float rstd = statistics[1];
  if (bias == nullptr) {
    for (std::int64_t i = 0; i < width; ++i) store(y[i], (load(x[i]) - mean) * rstd * load(weight[i]));
  } else {
    for (std::int64_t i = 0; i < width; ++i) store(y[i], (load(x[i]) - mean) * rstd * load(weight[i]) + load(bias[i]));
  }
}

template <typename T>
TESSERA_INLINE void forward_rows(T* sum, const T* x, const T* weight, const T* bias, float epsilon, T* y, float* statistics,
                                 std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* row = x + r * width;
    if (sum != nullptr) {
      T* total = sum + r * width;
      for (std::int64_t i = 0; i < width; ++i) store(total[i], load(total[i]) + load(row[i]));
      row = total;
    }
    const float mean = row_sum(row, width, [](float v) { return v; }) / static_cast<float>(width);
    const float squares = row_sum(row, width, [mean](float v) { return (v - mean) * (v - mean); });
    statistics[2 * r] = mean;
    statistics[2 * r + 1] = 1.0f / std::sqrt(squares / static_cast<float>(width) + epsilon);
    normalize_row(row, weight, bias, statistics + 2 * r, y + r * width, width);
  }
}

// With xhat = (x - mean) * rstd and g = dy * weight: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)); sums[i] += dy[i] * xhat[i], and
// sums[width + i] += dy[i].
template <typename T>
TESSERA_INLINE void backward_rows(const T* dy, const T* x, const T* weight, const float* statistics, const T* residual, T* dx, float* sums,
                                  std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* g = dy + r * width;
    const T* v = x + r * width;
    const float mean = statistics[2 * r];
    const float rstd = statistics[2 * r + 1];
    float plain[kLanes] = {};
    float projected[kLanes] = {};
    const auto add = [&](std::int64_t i, std::int64_t lane) {
      const float product = load(g[i]) * (load(v[i]) - mean) * rstd;
      sums[i] += product;
      sums[width + i] += load(g[i]);
      plain[lane] += load(g[i]) * load(weight[i]);
      projected[lane] += product * load(weight[i]);
    };
    std::int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
      for (std::int64_t l = 0; l < kLanes; ++l) add(i + l, l);
    for (; i < width; ++i) add(i, i % kLanes);
    const float of_plain = sum_lanes(plain) / static_cast<float>(width);
    const float of_projected = sum_lanes(projected) / static_cast<float>(width);
    T* out = dx + r * width;
    const T* more = residual == nullptr ? nullptr : residual + r * width;
    for (std::int64_t j = 0; j < width; ++j) {
      const float own = rstd * (load(g[j]) * load(weight[j]) - of_plain - (load(v[j]) - mean) * rstd * of_projected);
      store(out[j], more == nullptr ? own : load(more[j]) + own);
    }
  }
}

#define TESSERA_LAYER_NORM_ROWS(T)                                                                                                \
  TESSERA_MULTIVERSION void forward(T* sum, const T* x, const T* weight, const T* bias, float epsilon, T* y, float* statistics,   \
                                    std::int64_t rows, std::int64_t width) {                                                      \
    forward_rows(sum, x, weight, bias, epsilon, y, statistics, rows, width);                                                      \
  }                                                                                                                               \
  TESSERA_MULTIVERSION void again(const T* x, const T* weight, const T* bias, const float* statistics, T* y, std::int64_t rows,   \
                                  std::int64_t width) {                                                                           \
    for (std::int64_t r = 0; r < rows; ++r) normalize_row(x + r * width, weight, bias, statistics + 2 * r, y + r * width, width); \
  }                                                                                                                               \
  TESSERA_MULTIVERSION void backward(const T* dy, const T* x, const T* weight, const float* statistics, const T* residual, T* dx, \
                                     float* sums, std::int64_t rows, std::int64_t width) {                                        \
    backward_rows(dy, x, weight, statistics, residual, dx, sums, rows, width);                                                    \
  }
TESSERA_LAYER_NORM_ROWS(float)
TESSERA_LAYER_NORM_ROWS(Bf16)
#undef TESSERA_LAYER_NORM_ROWS

template <typename T>
const T* optional_data(const at::Tensor& tensor) {
  return tensor.defined() ? data<T>(tensor) : nullptr;
}

void run_forward(at::Tensor* sum, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon, at::Tensor& y,
                 at::Tensor& statistics) {
  const std::int64_t width = weight.numel();
  dispatch(x, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, x.numel() / width, row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      forward(sum == nullptr ? nullptr : data<T>(*sum) + begin * width, data<T>(x) + begin * width, data<T>(weight), optional_data<T>(bias),
              static_cast<float>(epsilon), data<T>(y) + begin * width, data<float>(statistics) + 2 * begin, end - begin, width);
    });
  });
}

}  // namespace

void layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon, at::Tensor& y,
                at::Tensor& statistics) {
  if (!use_cpu_kernels(x)) return aten::layer_norm(x, weight, bias, epsilon, y, statistics);
  run_forward(nullptr, x, weight, bias, epsilon, y, statistics);
}

void add_layer_norm(at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon, at::Tensor& y,
                    at::Tensor& statistics) {
  if (!use_cpu_kernels(x)) return aten::add_layer_norm(sum, x, weight, bias, epsilon, y, statistics);
  run_forward(&sum, x, weight, bias, epsilon, y, statistics);
}

void layer_norm_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& statistics, at::Tensor& y) {
  if (!use_cpu_kernels(x)) return aten::layer_norm_again(x, weight, bias, statistics, y);
  const std::int64_t width = weight.numel();
  dispatch(x, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, x.numel() / width, row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      again(data<T>(x) + begin * width, data<T>(weight), optional_data<T>(bias), data<float>(statistics) + 2 * begin,
            data<T>(y) + begin * width, end - begin, width);
    });
  });
}

void layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& statistics,
                         const at::Tensor& residual, at::Tensor& dx, at::Tensor& parameter_grads) {
  if (!use_cpu_kernels(x)) return aten::layer_norm_backward(dy, x, weight, statistics, residual, dx, parameter_grads);
  const std::int64_t width = weight.numel();
  parameter_grads.zero_();
  dispatch(x, [&](auto tag) {
    using T = decltype(tag);
    add_by_slabs(x.numel() / width, 2 * width, data<float>(parameter_grads), [&](std::int64_t first, std::int64_t rows, float* sums) {
      const std::int64_t at = first * width;
      backward(data<T>(dy) + at, data<T>(x) + at, data<T>(weight), data<float>(statistics) + 2 * first,
               residual.defined() ? data<T>(residual) + at : nullptr, data<T>(dx) + at, sums, rows, width);
    });
  });
}

}  // namespace tessera::nn::kernels
