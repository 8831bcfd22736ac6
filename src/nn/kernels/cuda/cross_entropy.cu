#include "nn/kernels/cuda/grid.hpp"

namespace tessera::nn::kernels::cuda {
namespace {

// A block has one row in each of them.

template <int N>
__global__ void row_maximum(const float* logits, const std::int64_t* targets, std::int64_t first_column, float* maximum,
                            float* target_logit, std::int64_t width) {
  const float* const row = logits + blockIdx.x * width;
  float best = -INFINITY;
  for (std::int64_t i = threadIdx.x * N; i < width; i += blockDim.x * N) {
    float value[N];
    load(row + i, value);
#pragma unroll
    for (int j = 0; j < N; ++j) best = Larger{}(best, value[j]);
  }
  best = over_block(best, Larger{}, -INFINITY);
  if (threadIdx.x == 0) {
    const std::int64_t column = targets[blockIdx.x] - first_column;
    maximum[blockIdx.x] = best;
    target_logit[blockIdx.x] = targets[blockIdx.x] >= 0 && column >= 0 && column < width ? row[column] : 0.0f;
  }
}

template <int N>
__global__ void exponentials(float* logits, const float* maximum, float* sum, std::int64_t width) {
  float* const row = logits + blockIdx.x * width;
  const float best = maximum[blockIdx.x];
  float total = 0;
  for (std::int64_t i = threadIdx.x * N; i < width; i += blockDim.x * N) {
    float value[N];
    load(row + i, value);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      value[j] = expf(value[j] - best);
      total += value[j];
    }
    store(row + i, value);
  }
  total = over_block(total, Add{}, 0.0f);
  if (threadIdx.x == 0) sum[blockIdx.x] = total;
}

template <typename T, int N>
__global__ void gradient(const float* exponentials, const std::int64_t* targets, std::int64_t first_column, const float* sum, double scale,
                         T* gradient, std::int64_t width) {
  const std::int64_t first = blockIdx.x * width;
  const std::int64_t column = targets[blockIdx.x] - first_column;
  const bool counted = targets[blockIdx.x] >= 0;
  const float factor = static_cast<float>(scale / sum[blockIdx.x]);
  const float all = static_cast<float>(scale);
  for (std::int64_t i = threadIdx.x * N; i < width; i += blockDim.x * N) {
    float value[N];
    load(exponentials + first + i, value);
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = counted ? value[j] * factor - (i + j == column ? all : 0.0f) : 0.0f;
    store(gradient + first + i, value);
  }
}

}  // namespace
}  // namespace tessera::nn::kernels::cuda

using namespace tessera::nn::kernels::cuda;

extern "C" const char* tessera_cuda_cross_entropy_maximum(const float* logits, const std::int64_t* targets, std::int64_t first_column,
                                                          float* maximum, float* target_logit, std::int64_t rows, std::int64_t width,
                                                          void* stream) {
  const auto run = [&](auto kernel, int pack) {
    return launch(kernel, rows, threads_for(width, pack), stream, logits, targets, first_column, maximum, target_logit, width);
  };
  return is_packed<float>(width, {logits}) ? run(row_maximum<4>, 4) : run(row_maximum<1>, 1);
}

extern "C" const char* tessera_cuda_cross_entropy_exponentials(float* logits, const float* maximum, float* sum, std::int64_t rows,
                                                               std::int64_t width, void* stream) {
  const auto run = [&](auto kernel, int pack) {
    return launch(kernel, rows, threads_for(width, pack), stream, logits, maximum, sum, width);
  };
  return is_packed<float>(width, {logits}) ? run(exponentials<4>, 4) : run(exponentials<1>, 1);
}

extern "C" const char* tessera_cuda_cross_entropy_gradient(TesseraElement type, const float* exponentials, const std::int64_t* targets,
                                                           std::int64_t first_column, const float* sum, double scale, void* result,
                                                           std::int64_t rows, std::int64_t width, void* stream) {
  return for_elements(type, width, {exponentials, result}, [&](auto element, auto pack) {
    using T = decltype(element);
    constexpr int N = decltype(pack)::value;
    return launch(gradient<T, N>, rows, threads_for(width, N), stream, exponentials, targets, first_column, sum, scale,
                  static_cast<T*>(result), width);
  });
}

extern "C" int tessera_cuda_on_host(void) {
#ifdef __CUDACC__
  return 0;
#else
  return 1;
#endif
}
