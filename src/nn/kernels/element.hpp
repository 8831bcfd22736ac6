// Internal: element types of the CPU kernels and what lets plain loops be vectorised for the CPU at hand.
#pragma once

#include <bit>
#include <cstdint>

// A function so marked is compiled for AVX-512, AVX2 and baseline x86-64; the loader picks one at start.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TESSERA_MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TESSERA_MULTIVERSION
#endif
#define TESSERA_INLINE inline __attribute__((always_inline))

namespace tessera::nn::kernels {

// The upper half of an f32, rounded to nearest even.
struct Bf16 {
  std::uint16_t bits;
};

TESSERA_INLINE float load(float value) { return value; }
TESSERA_INLINE float load(Bf16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }
TESSERA_INLINE void store(float& place, float value) { place = value; }
TESSERA_INLINE void store(Bf16& place, float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  place.bits = static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? ((bits >> 16) | 0x40u) : rounded);
}

// e^x within 2 ulp for any x <= 88; 0 below -87.3 (Cephes' expf: reduction by ln 2 in two parts, degree-5 polynomial).
// Branch-free, so that loops over it are vectorised.
TESSERA_INLINE float fast_exp(float x) {
  const float clamped = x < -87.3f ? -87.3f : (x > 88.0f ? 88.0f : x);
  const float shifted = clamped * 1.44269504088896341f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(12582912.0f);
  const float scale = std::bit_cast<float>((exponent + 127) << 23);
  return x < -87.3f ? 0.0f : p * scale;
}

// Sums in this many lanes keep one order on every machine while the compiler vectorises them.
constexpr std::int64_t kLanes = 16;

TESSERA_INLINE float sum_lanes(const float* lanes) {
  float pair[8];
  for (int i = 0; i < 8; ++i) pair[i] = lanes[i] + lanes[i + 8];
  return ((pair[0] + pair[4]) + (pair[2] + pair[6])) + ((pair[1] + pair[5]) + (pair[3] + pair[7]));
}

}  // namespace tessera::nn::kernels
