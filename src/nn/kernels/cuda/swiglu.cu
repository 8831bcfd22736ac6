#include "nn/kernels/cuda/grid.hpp"

namespace tessera::nn::kernels::cuda {
namespace {

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Calls body(place of the gate, of the hidden element) for every N neighbours.
template <int N, typename Body>
__device__ inline void for_packs(std::int64_t rows, std::int64_t width, const Body& body) {
  const std::int64_t of_row = width / N;
  for (std::int64_t item = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; item < rows * of_row;
       item += gridDim.x * static_cast<std::int64_t>(blockDim.x)) {
    const std::int64_t row = item / of_row;
    body(item * N + row * width, item * N);
  }
}

template <typename T, int N>
__global__ void forward(const T* gate_up, T* hidden, std::int64_t rows, std::int64_t width) {
  for_packs<N>(rows, width, [&](std::int64_t place, std::int64_t out) {
    float gate[N], up[N];
    load(gate_up + place, gate);
    load(gate_up + place + width, up);
#pragma unroll
    for (int j = 0; j < N; ++j) gate[j] = gate[j] * sigmoid(gate[j]) * up[j];
    store(hidden + out, gate);
  });
}

template <typename T, int N>
__global__ void backward(T* gate_up, T* hidden, std::int64_t rows, std::int64_t width) {
  for_packs<N>(rows, width, [&](std::int64_t place, std::int64_t out) {
    float gate[N], up[N], grad[N];
    load(gate_up + place, gate);
    load(gate_up + place + width, up);
    load(hidden + out, grad);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float share = sigmoid(gate[j]);
      const float silu = gate[j] * share;
      const float output = silu * up[j];
      gate[j] = grad[j] * up[j] * (share + silu * (1.0f - share));
      up[j] = grad[j] * silu;
      grad[j] = output;
    }
    store(gate_up + place, gate);
    store(gate_up + place + width, up);
    store(hidden + out, grad);
  });
}

}  // namespace
}  // namespace tessera::nn::kernels::cuda

using namespace tessera::nn::kernels::cuda;

extern "C" const char* tessera_cuda_swiglu(TesseraElement type, const void* gate_up, void* hidden, std::int64_t rows, std::int64_t width,
                                           void* stream) {
  return for_elements(type, width, {gate_up, hidden}, [&](auto element, auto pack) {
    using T = decltype(element);
    constexpr int N = decltype(pack)::value;
    return launch(forward<T, N>, blocks_for(rows * (width / N)), kThreads, stream, static_cast<const T*>(gate_up), static_cast<T*>(hidden),
                  rows, width);
  });
}

extern "C" const char* tessera_cuda_swiglu_backward(TesseraElement type, void* gate_up, void* hidden, std::int64_t rows, std::int64_t width,
                                                    void* stream) {
  return for_elements(type, width, {gate_up, hidden}, [&](auto element, auto pack) {
    using T = decltype(element);
    constexpr int N = decltype(pack)::value;
    return launch(backward<T, N>, blocks_for(rows * (width / N)), kThreads, stream, static_cast<T*>(gate_up), static_cast<T*>(hidden), rows,
                  width);
  });
}
