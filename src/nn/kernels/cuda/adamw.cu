#include <algorithm>

#include "nn/kernels/cuda/grid.hpp"

namespace tessera::nn::kernels::cuda {
namespace {

struct Factors {
  float grad_scale, first_share, beta2, second_share, step_size, correction, epsilon;
};

// What one launch steps: a kernel takes up to 4 KiB of parameters, and reads these where they lie.
constexpr int kTensors = 32;
struct Batch {
  TesseraAdamwTensor tensors[kTensors];
  std::int64_t first_block[kTensors + 1];
  bool packed[kTensors];
  int count;
};

constexpr std::int64_t kPerBlock = 4096;

template <int N>
__device__ void step_range(const TesseraAdamwTensor& t, const Factors& f, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin + threadIdx.x * N; i < end; i += blockDim.x * N) {
    float value[N], grad[N], first[N], second[N];
    load(t.master + i, value);
    load(t.grad + i, grad);
    load(t.exp_avg + i, first);
    load(t.exp_avg_sq + i, second);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float g = grad[j] * f.grad_scale;
      first[j] += f.first_share * (g - first[j]);
      second[j] = second[j] * f.beta2 + f.second_share * g * g;
      value[j] = value[j] * t.decay - f.step_size * (first[j] / (sqrtf(second[j]) * f.correction + f.epsilon));
    }
    store(t.master + i, value);
    store(t.exp_avg + i, first);
    store(t.exp_avg_sq + i, second);
    if (t.compute != nullptr) store(static_cast<Bf16*>(t.compute) + i, value);
  }
}

__global__ void step(const __grid_constant__ Batch batch, const Factors factors) {
  int index = 0;
  while (index + 1 < batch.count && blockIdx.x >= batch.first_block[index + 1]) ++index;
  const TesseraAdamwTensor& tensor = batch.tensors[index];
  const std::int64_t begin = (blockIdx.x - batch.first_block[index]) * kPerBlock;
  const std::int64_t end = begin + kPerBlock < tensor.count ? begin + kPerBlock : tensor.count;
  if (batch.packed[index]) {
    const std::int64_t whole = end - end % 4;
    step_range<4>(tensor, factors, begin, whole);
    step_range<1>(tensor, factors, whole, end);
  } else {
    step_range<1>(tensor, factors, begin, end);
  }
}

}  // namespace
}  // namespace tessera::nn::kernels::cuda

extern "C" const char* tessera_cuda_adamw(const TesseraAdamwTensor* tensors, std::int64_t tensor_count, float grad_scale, float first_share,
                                          float beta2, float second_share, float step_size, float correction, float epsilon, void* stream) {
  using namespace tessera::nn::kernels::cuda;
  const Factors factors{grad_scale, first_share, beta2, second_share, step_size, correction, epsilon};
  for (std::int64_t done = 0; done < tensor_count; done += kTensors) {
    Batch batch{};
    batch.count = static_cast<int>(std::min<std::int64_t>(kTensors, tensor_count - done));
    for (int i = 0; i < batch.count; ++i) {
      const TesseraAdamwTensor& t = batch.tensors[i] = tensors[done + i];
      batch.packed[i] = is_packed<float>(0, {t.master, t.grad, t.exp_avg, t.exp_avg_sq, t.compute});
      batch.first_block[i + 1] = batch.first_block[i] + (t.count + kPerBlock - 1) / kPerBlock;
    }
    if (const char* error = launch(step, batch.first_block[batch.count], kThreads, stream, batch, factors)) return error;
  }
  return nullptr;
}
