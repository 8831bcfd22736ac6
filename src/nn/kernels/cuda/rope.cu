#include "nn/kernels/cuda/grid.hpp"

namespace tessera::nn::kernels::cuda {
namespace {

struct Shape {
  std::int64_t rows, stride, heads, half, seq, position;
};

// A thread turns N neighbouring pairs.
template <typename T, int N>
__global__ void rotate(T* x, Shape s, const std::int64_t* positions, const float* cosine, const float* sine, float sign) {
  const std::int64_t of_head = s.half / N;
  const std::int64_t of_row = s.heads * of_head;
  const std::int64_t all = s.rows * of_row;
  for (std::int64_t item = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; item < all;
       item += gridDim.x * static_cast<std::int64_t>(blockDim.x)) {
    const std::int64_t row = item / of_row;
    const std::int64_t head = item % of_row / of_head;
    const std::int64_t i = item % of_head * N;
    const std::int64_t angle = (positions != nullptr ? positions[row] : s.position + row % s.seq) * s.half + i;
    T* const first = x + row * s.stride + head * 2 * s.half + i;
    float a[N], b[N], c[N], d[N];
    load(first, a);
    load(first + s.half, b);
    load(cosine + angle, c);
    load(sine + angle, d);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float before = a[j];
      const float turn = sign * d[j];
      a[j] = before * c[j] - b[j] * turn;
      b[j] = b[j] * c[j] + before * turn;
    }
    store(first, a);
    store(first + s.half, b);
  }
}

}  // namespace
}  // namespace tessera::nn::kernels::cuda

extern "C" const char* tessera_cuda_rope(TesseraElement type, void* x, std::int64_t rows, std::int64_t stride, std::int64_t heads,
                                         std::int64_t head_dim, std::int64_t seq, std::int64_t position, const std::int64_t* positions,
                                         const float* cosine, const float* sine, float sign, void* stream) {
  using namespace tessera::nn::kernels::cuda;
  const Shape shape{rows, stride, heads, head_dim / 2, seq, position};
  // Half a head and the step between rows must both be whole packs, and so must half a head of f32 be in the tables.
  const std::int64_t aligned = stride % 8 == 0 ? shape.half : 1;
  return for_elements(type, aligned, {x, cosine, sine}, [&](auto element, auto pack) {
    using T = decltype(element);
    constexpr int N = decltype(pack)::value;
    return launch(rotate<T, N>, blocks_for(rows * heads * (shape.half / N)), kThreads, stream, static_cast<T*>(x), shape, positions, cosine,
                  sine, sign);
  });
}
