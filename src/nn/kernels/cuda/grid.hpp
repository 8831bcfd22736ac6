// Internal: what the kernels are written with: elements, packs of them, sums over a block, launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "nn/kernels/cuda/interface.hpp"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#else
#include "nn/kernels/cuda/on_host.hpp"
#endif

namespace tessera::nn::kernels::cuda {

struct Bf16 {
  std::uint16_t bits;
};

__device__ inline float load(float value) { return value; }
__device__ inline void store(float& place, float value) { place = value; }
#ifdef __CUDACC__
__device__ inline float load(Bf16 value) { return __uint_as_float(static_cast<unsigned>(value.bits) << 16); }
__device__ inline void store(Bf16& place, float value) { place.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value)); }
#else
inline float load(Bf16 value) { return kernels::load(kernels::Bf16{value.bits}); }
inline void store(Bf16& place, float value) {
  kernels::Bf16 rounded;
  kernels::store(rounded, value);
  place.bits = rounded.bits;
}
#endif

// What comes back of a value that is stored as T.
template <typename T>
__device__ inline float rounded(float value) {
  T place;
  store(place, value);
  return load(place);
}

// N neighbours, read and written in one access of up to 16 bytes each.
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T at[N];
};

template <int N, typename T>
__device__ inline void load(const T* from, float (&values)[N]) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = load(pack.at[i]);
}

template <int N, typename T>
__device__ inline void store(T* to, const float (&values)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) store(pack.at[i], values[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Larger {
  __device__ float operator()(float a, float b) const { return a > b ? a : b; }
};

constexpr int kWarp = 32;
constexpr int kMaxThreads = 512;

// All threads of the block get what `combine` makes of all their values; `none` changes nothing. Every thread calls it.
template <typename Combine>
__device__ inline float over_block(float value, Combine combine, float none) {
  __shared__ float of_warps[kWarp];
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (warps == 1) return value;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = lane < warps ? of_warps[lane] : none;
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  // The next call writes there.
  __syncthreads();
  return value;
}

// Threads of a block that has one row of `width` elements, N at a time: whole warps.
inline int threads_for(std::int64_t width, int N) {
  const std::int64_t packs = (width + N - 1) / N;
  const std::int64_t threads = (packs + kWarp - 1) / kWarp * kWarp;
  return static_cast<int>(threads < kWarp ? kWarp : threads > kMaxThreads ? kMaxThreads : threads);
}

// Where work is cut into grid-strided pieces: enough blocks to fill any device.
constexpr std::int64_t kMaxBlocks = 1 << 14;
constexpr int kThreads = 256;
inline std::int64_t blocks_for(std::int64_t items) {
  const std::int64_t blocks = (items + kThreads - 1) / kThreads;
  return blocks < kMaxBlocks ? blocks : kMaxBlocks;
}

// Null, or what went wrong. A grid without blocks is none.
template <typename... Parameters, typename... Arguments>
const char* launch(void (*kernel)(Parameters...), std::int64_t blocks, int threads, void* stream, Arguments... arguments) {
  if (blocks == 0) return nullptr;
#ifdef __CUDACC__
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<Parameters>(arguments)...);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
#else
  on_host::run(static_cast<unsigned>(blocks), static_cast<unsigned>(threads), [&] { kernel(static_cast<Parameters>(arguments)...); });
  return nullptr;
#endif
}

// Whether rows of `width` elements, beginning at these places, may be read in packs of 16 bytes. A null place is none.
template <typename T>
bool is_packed(std::int64_t width, std::initializer_list<const void*> places) {
  for (const void* place : places)
    if (reinterpret_cast<std::uintptr_t>(place) % 16 != 0) return false;
  return width % static_cast<std::int64_t>(16 / sizeof(T)) == 0;
}

// Calls body(T{}, N) with the element type, and as N (an integral_constant) how many elements the kernel takes at a time.
template <typename Body>
const char* for_elements(TesseraElement type, std::int64_t width, std::initializer_list<const void*> places, const Body& body) {
  if (type == TESSERA_F32) {
    if (is_packed<float>(width, places)) return body(float{}, std::integral_constant<int, 4>{});
    return body(float{}, std::integral_constant<int, 1>{});
  }
  if (is_packed<Bf16>(width, places)) return body(Bf16{}, std::integral_constant<int, 8>{});
  return body(Bf16{}, std::integral_constant<int, 1>{});
}

}  // namespace tessera::nn::kernels::cuda
