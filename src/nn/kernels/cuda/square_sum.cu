#include "nn/kernels/cuda/grid.hpp"

namespace tessera::nn::kernels::cuda {
namespace {

// Thread 0 leaves the sum of all threads' values, in an order that depends on their number alone. Every thread calls it.
__device__ inline void add_block(double value, double& total) {
  __shared__ double of_threads[kThreads];
  of_threads[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) of_threads[threadIdx.x] += of_threads[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) total = of_threads[0];
}

template <int N>
__global__ void squares(const float* x, std::int64_t count, double* partial) {
  double sum = 0;
  for (std::int64_t i = (blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x) * N; i < count;
       i += gridDim.x * static_cast<std::int64_t>(blockDim.x) * N) {
    float value[N];
    load(x + i, value);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += static_cast<double>(value[j]) * static_cast<double>(value[j]);
  }
  add_block(sum, partial[blockIdx.x]);
}

__global__ void add_partial(const double* partial, int count, double* total) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) sum += partial[i];
  add_block(sum, *total);
}

}  // namespace
}  // namespace tessera::nn::kernels::cuda

extern "C" const char* tessera_cuda_square_sum(const float* x, std::int64_t count, double* partial, double* total, void* stream) {
  using namespace tessera::nn::kernels::cuda;
  const auto run = [&](auto kernel) { return launch(kernel, TESSERA_SQUARE_SUM_PARTS, kThreads, stream, x, count, partial); };
  if (const char* error = is_packed<float>(count, {x}) ? run(squares<4>) : run(squares<1>)) return error;
  return launch(add_partial, 1, kThreads, stream, partial, static_cast<int>(TESSERA_SQUARE_SUM_PARTS), total);
}
