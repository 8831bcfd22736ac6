#include "nn/kernels/norm.hpp"

#include <ATen/Parallel.h>
#include <cmath>

#include "nn/kernels/aten/kernels.hpp"
#include "nn/kernels/cuda/kernels.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/dispatch.hpp"
#include "nn/kernels/slabs.hpp"

namespace tessera::nn::kernels {
namespace {

template <typename T>
TESSERA_INLINE float square_sum(const T* x, std::int64_t width) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      const float v = load(x[i + l]);
      lanes[l] += v * v;
    }
  }
  for (; i < width; ++i) lanes[i % kLanes] += load(x[i]) * load(x[i]);
  return sum_lanes(lanes);
}

template <typename T>
TESSERA_INLINE void scale_row(const T* x, const T* weight, float rstd, T* y, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) store(y[i], load(x[i]) * rstd * load(weight[i]));
}

template <typename T>
TESSERA_INLINE void forward_rows(T* sum, const T* x, const T* weight, float epsilon, T* y, float* rstd, std::int64_t rows,
                                 std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* row = x + r * width;
    if (sum != nullptr) {
      T* total = sum + r * width;
      for (std::int64_t i = 0; i < width; ++i) store(total[i], load(total[i]) + load(row[i]));
      row = total;
    }
    rstd[r] = 1.0f / std::sqrt(square_sum(row, width) / static_cast<float>(width) + epsilon);
    scale_row(row, weight, rstd[r], y + r * width, width);
  }
}

// dx = rstd * (dy*w - xhat * mean(dy*w*xhat)) with xhat = x * rstd; partial[i] += dy[i] * xhat[i].
template <typename T>
TESSERA_INLINE void backward_rows(const T* dy, const T* x, const T* weight, const float* rstd, const T* residual, T* dx, float* partial,
                                  std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* g = dy + r * width;
    const T* v = x + r * width;
    const float scale = rstd[r];
    float lanes[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      for (std::int64_t l = 0; l < kLanes; ++l) {
        const float product = load(g[i + l]) * load(v[i + l]) * scale;
        partial[i + l] += product;
        lanes[l] += product * load(weight[i + l]);
      }
    }
    for (; i < width; ++i) {
      const float product = load(g[i]) * load(v[i]) * scale;
      partial[i] += product;
      lanes[i % kLanes] += product * load(weight[i]);
    }
    const float mean = sum_lanes(lanes) / static_cast<float>(width);
    T* out = dx + r * width;
    if (residual != nullptr) {
      const T* add = residual + r * width;
      for (std::int64_t j = 0; j < width; ++j) {
        store(out[j], load(add[j]) + scale * (load(g[j]) * load(weight[j]) - load(v[j]) * scale * mean));
      }
    } else {
      for (std::int64_t j = 0; j < width; ++j) {
        store(out[j], scale * (load(g[j]) * load(weight[j]) - load(v[j]) * scale * mean));
      }
    }
  }
}

template <typename T>
TESSERA_INLINE float rstd_of(const T* head, std::int64_t head_dim, float epsilon) {
  return 1.0f / std::sqrt(square_sum(head, head_dim) / static_cast<float>(head_dim) + epsilon);
}

template <typename T>
TESSERA_INLINE void forward_heads(const T* qkv, const HeadShape& s, const T* query_weight, const T* key_weight, float epsilon, T* y,
                                  std::int64_t rows) {
  const std::int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
  const std::int64_t normed = (s.heads + s.kv_heads) * s.head_dim;
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* from = qkv + r * width;
    T* to = y + r * width;
    for (std::int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
      const T* head = from + h * s.head_dim;
      scale_row(head, h < s.heads ? query_weight : key_weight, rstd_of(head, s.head_dim, epsilon), to + h * s.head_dim, s.head_dim);
    }
    for (std::int64_t i = normed; i < width; ++i) to[i] = from[i];
  }
}

// partial: sums for the queries' weight, then for the keys'.
template <typename T>
TESSERA_INLINE void backward_heads(const T* qkv, const HeadShape& s, const T* query_weight, const T* key_weight, float epsilon, T* grad,
                                   float* partial, std::int64_t rows) {
  const std::int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
      const T* head = qkv + r * width + h * s.head_dim;
      T* dy = grad + r * width + h * s.head_dim;
      const bool query = h < s.heads;
      const float rstd = rstd_of(head, s.head_dim, epsilon);
      backward_rows<T>(dy, head, query ? query_weight : key_weight, &rstd, nullptr, dy, query ? partial : partial + s.head_dim, 1,
                       s.head_dim);
    }
  }
}

#define TESSERA_NORM_ROWS(T)                                                                                                            \
  TESSERA_MULTIVERSION void forward(T* sum, const T* x, const T* weight, float epsilon, T* y, float* rstd, std::int64_t rows,           \
                                    std::int64_t width) {                                                                               \
    forward_rows(sum, x, weight, epsilon, y, rstd, rows, width);                                                                        \
  }                                                                                                                                     \
  TESSERA_MULTIVERSION void again(const T* x, const T* weight, const float* rstd, T* y, std::int64_t rows, std::int64_t width) {        \
    for (std::int64_t r = 0; r < rows; ++r) scale_row(x + r * width, weight, rstd[r], y + r * width, width);                            \
  }                                                                                                                                     \
  TESSERA_MULTIVERSION void backward(const T* dy, const T* x, const T* weight, const float* rstd, const T* residual, T* dx,             \
                                     float* partial, std::int64_t rows, std::int64_t width) {                                           \
    backward_rows(dy, x, weight, rstd, residual, dx, partial, rows, width);                                                             \
  }                                                                                                                                     \
  TESSERA_MULTIVERSION void norm_heads(const T* qkv, const HeadShape& shape, const T* query_weight, const T* key_weight, float epsilon, \
                                       T* y, std::int64_t rows) {                                                                       \
    forward_heads(qkv, shape, query_weight, key_weight, epsilon, y, rows);                                                              \
  }                                                                                                                                     \
  TESSERA_MULTIVERSION void norm_heads_backward(const T* qkv, const HeadShape& shape, const T* query_weight, const T* key_weight,       \
                                                float epsilon, T* grad, float* partial, std::int64_t rows) {                            \
    backward_heads(qkv, shape, query_weight, key_weight, epsilon, grad, partial, rows);                                                 \
  }
TESSERA_NORM_ROWS(float)
TESSERA_NORM_ROWS(Bf16)
#undef TESSERA_NORM_ROWS

void run_forward(at::Tensor* sum, const at::Tensor& x, const at::Tensor& weight, double epsilon, at::Tensor& y, at::Tensor& rstd) {
  const std::int64_t width = weight.numel();
  const std::int64_t rows = x.numel() / width;
  dispatch(x, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, rows, row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      forward(sum == nullptr ? nullptr : data<T>(*sum) + begin * width, data<T>(x) + begin * width, data<T>(weight),
              static_cast<float>(epsilon), data<T>(y) + begin * width, data<float>(rstd) + begin, end - begin, width);
    });
  });
}

}  // namespace

void rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, at::Tensor& y, at::Tensor& rstd) {
  const Kernels kernels = kernels_for(x);
  if (kernels == Kernels::cuda) return cuda::rms_norm(x, weight, epsilon, y, rstd);
  if (kernels == Kernels::aten) return aten::rms_norm(x, weight, epsilon, y, rstd);
  run_forward(nullptr, x, weight, epsilon, y, rstd);
}

void add_rms_norm(at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight, double epsilon, at::Tensor& y, at::Tensor& rstd) {
  const Kernels kernels = kernels_for(x);
  if (kernels == Kernels::cuda) return cuda::add_rms_norm(sum, x, weight, epsilon, y, rstd);
  if (kernels == Kernels::aten) return aten::add_rms_norm(sum, x, weight, epsilon, y, rstd);
  run_forward(&sum, x, weight, epsilon, y, rstd);
}

void rms_norm_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd, at::Tensor& y) {
  const Kernels kernels = kernels_for(x);
  if (kernels == Kernels::cuda) return cuda::rms_norm_again(x, weight, rstd, y);
  if (kernels == Kernels::aten) return aten::rms_norm_again(x, weight, rstd, y);
  const std::int64_t width = weight.numel();
  dispatch(x, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, x.numel() / width, row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      again(data<T>(x) + begin * width, data<T>(weight), data<float>(rstd) + begin, data<T>(y) + begin * width, end - begin, width);
    });
  });
}

void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                       const at::Tensor& residual, at::Tensor& dx, at::Tensor& weight_grad) {
  const Kernels kernels = kernels_for(x);
  if (kernels == Kernels::cuda) return cuda::rms_norm_backward(dy, x, weight, rstd, residual, dx, weight_grad);
  if (kernels == Kernels::aten) return aten::rms_norm_backward(dy, x, weight, rstd, residual, dx, weight_grad);
  const std::int64_t width = weight.numel();
  weight_grad.zero_();
  dispatch(x, [&](auto tag) {
    using T = decltype(tag);
    add_by_slabs(x.numel() / width, width, data<float>(weight_grad), [&](std::int64_t first, std::int64_t rows, float* sums) {
      const std::int64_t at = first * width;
      backward(data<T>(dy) + at, data<T>(x) + at, data<T>(weight), data<float>(rstd) + first,
               residual.defined() ? data<T>(residual) + at : nullptr, data<T>(dx) + at, sums, rows, width);
    });
  });
}

void rms_norm_heads(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& query_weight, const at::Tensor& key_weight,
                    double epsilon, at::Tensor& y) {
  if (!use_cpu_kernels(qkv)) return aten::rms_norm_heads(qkv, shape, query_weight, key_weight, epsilon, y);
  const std::int64_t width = qkv.size(1);
  dispatch(qkv, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, qkv.size(0), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      norm_heads(data<T>(qkv) + begin * width, shape, data<T>(query_weight), data<T>(key_weight), static_cast<float>(epsilon),
                 data<T>(y) + begin * width, end - begin);
    });
  });
}

void rms_norm_heads_backward(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& query_weight, const at::Tensor& key_weight,
                             double epsilon, at::Tensor& grad, at::Tensor& weight_grads) {
  if (!use_cpu_kernels(qkv)) return aten::rms_norm_heads_backward(qkv, shape, query_weight, key_weight, epsilon, grad, weight_grads);
  const std::int64_t width = qkv.size(1);
  weight_grads.zero_();
  dispatch(qkv, [&](auto tag) {
    using T = decltype(tag);
    add_by_slabs(qkv.size(0), 2 * shape.head_dim, data<float>(weight_grads), [&](std::int64_t first, std::int64_t rows, float* sums) {
      const std::int64_t at = first * width;
      norm_heads_backward(data<T>(qkv) + at, shape, data<T>(query_weight), data<T>(key_weight), static_cast<float>(epsilon),
                          data<T>(grad) + at, sums, rows);
    });
  });
}

}  // namespace tessera::nn::kernels
