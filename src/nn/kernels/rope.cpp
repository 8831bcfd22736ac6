#include "nn/kernels/rope.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "nn/kernels/aten/kernels.hpp"
#include "nn/kernels/cuda/kernels.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/dispatch.hpp"

namespace tessera::nn::kernels {
namespace {

template <typename T>
TESSERA_INLINE void rotate_heads(T* row, const float* cosine, const float* sine, float sign, std::int64_t heads, std::int64_t half) {
  for (std::int64_t h = 0; h < heads; ++h) {
    T* __restrict first = row + h * 2 * half;
    T* __restrict second = first + half;
    for (std::int64_t i = 0; i < half; ++i) {
      const float a = load(first[i]);
      const float b = load(second[i]);
      const float s = sign * sine[i];
      store(first[i], a * cosine[i] - b * s);
      store(second[i], b * cosine[i] + a * s);
    }
  }
}

TESSERA_MULTIVERSION void rotate(float* row, const float* cosine, const float* sine, float sign, std::int64_t heads, std::int64_t half) {
  rotate_heads(row, cosine, sine, sign, heads, half);
}
TESSERA_MULTIVERSION void rotate(Bf16* row, const float* cosine, const float* sine, float sign, std::int64_t heads, std::int64_t half) {
  rotate_heads(row, cosine, sine, sign, heads, half);
}

// In f32 and in the reference's order, so that the angles are the reference's.
float scaled(float frequency, const RopeFrequencies& f) {
  if (f.factor == 1.0) return frequency;
  const float original = static_cast<float>(f.original_seq);
  const float low = static_cast<float>(f.low_freq);
  const float high = static_cast<float>(f.high_freq);
  const float factor = static_cast<float>(f.factor);
  const float wave = 2.0f * std::numbers::pi_v<float> / frequency;
  if (wave > original / low) return frequency / factor;
  if (wave < original / high) return frequency;
  const float smooth = (original / wave - low) / (high - low);
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

// Where between the first and the last pair the line of YaRN begins and ends.
std::pair<double, double> ramp_of(const RopeFrequencies& f, std::int64_t head_dim) {
  const double dim = static_cast<double>(head_dim);
  const auto pair_that_turns = [&](double times) {
    return dim * std::log(f.original_seq / (times * 2 * std::numbers::pi)) / (2 * std::log(f.theta));
  };
  double low = pair_that_turns(f.beta_fast), high = pair_that_turns(f.beta_slow);
  if (f.whole_pairs) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  return {low, low == high ? high + 0.001 : high};
}

}  // namespace

at::Tensor rope_table(std::int64_t positions, std::int64_t head_dim, const RopeFrequencies& frequencies, at::Device device) {
  const std::int64_t half = head_dim / 2;
  at::Tensor table = at::empty({2, positions, half}, at::kFloat);
  float* cosine = data<float>(table);
  float* sine = cosine + positions * half;
  const auto [low, high] = frequencies.yarn ? ramp_of(frequencies, head_dim) : std::pair(0.0, 1.0);
  const auto scaled_pair = [&, low = low, high = high](std::int64_t i, float frequency) {
    if (!frequencies.yarn) return scaled(frequency, frequencies);
    const auto share = static_cast<float>(std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
    return frequency / static_cast<float>(frequencies.factor) * share + frequency * (1.0f - share);
  };
  for (std::int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float frequency = scaled_pair(i, 1.0f / std::pow(static_cast<float>(frequencies.theta), exponent));
    for (std::int64_t p = 0; p < positions; ++p) {
      // The angle is rounded to f32 as the reference does; its cosine is then exact.
      const double angle = static_cast<double>(static_cast<float>(p) * frequency);
      cosine[p * half + i] = static_cast<float>(frequencies.amplitude * std::cos(angle));
      sine[p * half + i] = static_cast<float>(frequencies.amplitude * std::sin(angle));
    }
  }
  return table.to(device);
}

void rope(at::Tensor& x, std::int64_t heads, std::int64_t head_dim, std::int64_t seq, std::int64_t position, const at::Tensor& table,
          bool inverse, const at::Tensor& positions) {
  const std::int64_t rows = x.size(0);
  const std::int64_t stride = x.stride(0);
  const std::int64_t half = head_dim / 2;
  ensure(position + seq <= table.size(1), "the rotary table is shorter than the sequence");
  const Kernels kernels = kernels_for(x);
  if (kernels == Kernels::cuda) return cuda::rope(x, heads, head_dim, seq, position, table, inverse, positions);
  if (kernels == Kernels::aten) return aten::rope(x, heads, head_dim, seq, position, table, inverse, positions);
  const float* cosine = data<float>(table);
  const float* sine = cosine + table.size(1) * half;
  const std::int64_t* given = positions.defined() ? data<std::int64_t>(positions) : nullptr;
  dispatch(x, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, rows, row_grain(heads * head_dim), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t p = (given != nullptr ? given[r] : position + r % seq) * half;
        rotate(data<T>(x) + r * stride, cosine + p, sine + p, inverse ? -1.0f : 1.0f, heads, half);
      }
    });
  });
}

}  // namespace tessera::nn::kernels
