#include <algorithm>

#include "nn/kernels/cuda/grid.hpp"

namespace tessera::nn::kernels::cuda {
namespace {

template <typename T, int N>
__device__ void scale_row(const T* x, const T* weight, float rstd, T* y, std::int64_t width) {
  for (std::int64_t i = threadIdx.x * N; i < width; i += blockDim.x * N) {
    float value[N], factor[N];
    load(x + i, value);
    load(weight + i, factor);
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = value[j] * rstd * factor[j];
    store(y + i, value);
  }
}

// A block has one row.
template <typename T, int N>
__global__ void forward(T* sum, const T* x, const T* weight, float epsilon, T* y, float* rstd, std::int64_t width) {
  const std::int64_t first = blockIdx.x * width;
  float squares = 0;
  for (std::int64_t i = threadIdx.x * N; i < width; i += blockDim.x * N) {
    float value[N];
    load(x + first + i, value);
    if (sum != nullptr) {
      float before[N];
      load(sum + first + i, before);
#pragma unroll
      for (int j = 0; j < N; ++j) value[j] = rounded<T>(before[j] + value[j]);
      store(sum + first + i, value);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) squares += value[j] * value[j];
  }
  const float scale = 1.0f / sqrtf(over_block(squares, Add{}, 0.0f) / static_cast<float>(width) + epsilon);
  if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
  // Each thread reads again what it has written itself.
  scale_row<T, N>((sum != nullptr ? sum : x) + first, weight, scale, y + first, width);
}

template <typename T, int N>
__global__ void again(const T* x, const T* weight, const float* rstd, T* y, std::int64_t width) {
  const std::int64_t first = blockIdx.x * width;
  scale_row<T, N>(x + first, weight, rstd[blockIdx.x], y + first, width);
}

// dx = rstd * (dy*w - xhat * mean(dy*w*xhat)) with xhat = x * rstd. A block has a slab: every so many rows. A thread has the same columns
// of all of them, so that what it adds up of the weight's gradient is its own.
template <typename T, int N>
__global__ void backward(const T* dy, const T* x, const T* weight, const float* rstd, const T* residual, T* dx, float* partial,
                         std::int64_t rows, std::int64_t width) {
  float* const sums = partial + blockIdx.x * width;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const std::int64_t first = row * width;
    const float scale = rstd[row];
    float dot = 0;
    for (std::int64_t i = threadIdx.x * N; i < width; i += blockDim.x * N) {
      float grad[N], value[N], factor[N], sum[N] = {};
      load(dy + first + i, grad);
      load(x + first + i, value);
      load(weight + i, factor);
      if (row != blockIdx.x) load(sums + i, sum);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float product = grad[j] * value[j] * scale;
        sum[j] += product;
        dot += product * factor[j];
      }
      store(sums + i, sum);
    }
    const float mean = over_block(dot, Add{}, 0.0f) / static_cast<float>(width);
    for (std::int64_t i = threadIdx.x * N; i < width; i += blockDim.x * N) {
      float grad[N], value[N], factor[N], out[N] = {};
      load(dy + first + i, grad);
      load(x + first + i, value);
      load(weight + i, factor);
      if (residual != nullptr) load(residual + first + i, out);
#pragma unroll
      for (int j = 0; j < N; ++j) out[j] += scale * (grad[j] * factor[j] - value[j] * scale * mean);
      store(dx + first + i, out);
    }
  }
}

// A block has one column for each thread of a warp, and its warps share the slabs.
__global__ void add_slabs(const float* partial, std::int64_t slabs, float* total, std::int64_t width) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float of_warps[kWarps][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t column = blockIdx.x * static_cast<std::int64_t>(kWarp) + lane;
  float sum = 0;
  if (column < width)
    for (std::int64_t slab = warp; slab < slabs; slab += kWarps) sum += partial[slab * width + column];
  of_warps[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= width) return;
  sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += of_warps[i][lane];
  total[column] = sum;
}

}  // namespace
}  // namespace tessera::nn::kernels::cuda

using namespace tessera::nn::kernels::cuda;

extern "C" const char* tessera_cuda_rms_norm(TesseraElement type, void* sum, const void* x, const void* weight, float epsilon, void* y,
                                             float* rstd, std::int64_t rows, std::int64_t width, void* stream) {
  return for_elements(type, width, {sum, x, weight, y}, [&](auto element, auto pack) {
    using T = decltype(element);
    constexpr int N = decltype(pack)::value;
    return launch(forward<T, N>, rows, threads_for(width, N), stream, static_cast<T*>(sum), static_cast<const T*>(x),
                  static_cast<const T*>(weight), epsilon, static_cast<T*>(y), rstd, width);
  });
}

extern "C" const char* tessera_cuda_rms_norm_again(TesseraElement type, const void* x, const void* weight, const float* rstd, void* y,
                                                   std::int64_t rows, std::int64_t width, void* stream) {
  return for_elements(type, width, {x, weight, y}, [&](auto element, auto pack) {
    using T = decltype(element);
    constexpr int N = decltype(pack)::value;
    return launch(again<T, N>, rows, threads_for(width, N), stream, static_cast<const T*>(x), static_cast<const T*>(weight), rstd,
                  static_cast<T*>(y), width);
  });
}

// Four blocks for each multiprocessor of the largest devices, and sums that stay in their caches.
extern "C" std::int64_t tessera_cuda_slabs(std::int64_t rows) { return std::min<std::int64_t>(rows, 512); }

extern "C" const char* tessera_cuda_rms_norm_backward(TesseraElement type, const void* dy, const void* x, const void* weight,
                                                      const float* rstd, const void* residual, void* dx, float* weight_grad, float* partial,
                                                      std::int64_t rows, std::int64_t width, void* stream) {
  const std::int64_t slabs = tessera_cuda_slabs(rows);
  const char* const error = for_elements(type, width, {dy, x, weight, residual, dx, partial}, [&](auto element, auto pack) {
    using T = decltype(element);
    constexpr int N = decltype(pack)::value;
    return launch(backward<T, N>, slabs, threads_for(width, N), stream, static_cast<const T*>(dy), static_cast<const T*>(x),
                  static_cast<const T*>(weight), rstd, static_cast<const T*>(residual), static_cast<T*>(dx), partial, rows, width);
  });
  if (error != nullptr) return error;
  return launch(add_slabs, (width + kWarp - 1) / kWarp, kThreads, stream, partial, slabs, weight_grad, width);
}
