#include "ps/row_values.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "ps/update.hpp"

namespace tessera::ps {
namespace {

constexpr float kMostInt8 = 127;

// 16 bits of one draw for each value.
class Dither {
 public:
  explicit Dither(Random& random) : random_(random) {}
  std::uint32_t next() {
    if (left_ == 0) {
      bits_ = random_.next();
      left_ = 4;
    }
    --left_;
    return static_cast<std::uint32_t>(bits_ >> (16 * left_) & 0xFFFF);
  }

 private:
  Random& random_;
  std::uint64_t bits_ = 0;
  int left_ = 0;
};

void store_bf16(std::span<const float> values, Dither dither, std::byte* stored) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Adding up to one unit of the last place that stays carries into it as often as the rest is large.
    const auto rounded = static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(values[i]) + dither.next()) >> 16);
    std::memcpy(stored + 2 * i, &rounded, 2);
  }
}

void store_int8(std::span<const float> values, Dither dither, std::byte* stored) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  const float scale = largest / kMostInt8, inverse = largest > 0 ? kMostInt8 / largest : 0;
  std::memcpy(stored, &scale, sizeof scale);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float rounded = std::floor(values[i] * inverse + static_cast<float>(dither.next()) * 0x1.0p-16f);
    stored[sizeof scale + i] = static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(rounded, -kMostInt8, kMostInt8)));
  }
}

}  // namespace

std::size_t row_bytes(RowType type, int dimension) {
  const auto values = static_cast<std::size_t>(dimension);
  switch (type) {
    case RowType::fp32: return 4 * values;
    case RowType::bf16: return (2 * values + 3) / 4 * 4;
    case RowType::int8: return (4 + values + 3) / 4 * 4;
  }
  return 0;
}

void load_row(RowType type, const std::byte* stored, std::span<float> values) {
  switch (type) {
    case RowType::fp32: std::memcpy(values.data(), stored, values.size_bytes()); return;
    case RowType::bf16:
      for (std::size_t i = 0; i < values.size(); ++i) {
        std::uint16_t bits;
        std::memcpy(&bits, stored + 2 * i, 2);
        values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
      }
      return;
    case RowType::int8: {
      float scale;
      std::memcpy(&scale, stored, sizeof scale);
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = scale * static_cast<float>(static_cast<std::int8_t>(stored[sizeof scale + i]));
      return;
    }
  }
}

void store_row(RowType type, std::span<const float> values, Random& random, std::byte* stored) {
  switch (type) {
    case RowType::fp32: std::memcpy(stored, values.data(), values.size_bytes()); return;
    case RowType::bf16: store_bf16(values, Dither(random), stored); return;
    case RowType::int8: store_int8(values, Dither(random), stored); return;
  }
}

void store_gradient(RowType type, std::span<const float> values, Random& random, std::byte* stored) {
  if (type == RowType::fp32 || all_finite(values)) return store_row(type, values, random, stored);
  // All of the row: in int8 it is the scale that says so.
  std::fill_n(stored, row_bytes(type, static_cast<int>(values.size())), std::byte{0xFF});
}

void store_nearest(RowType type, std::span<const float> values, std::byte* stored) {
  switch (type) {
    case RowType::fp32: std::memcpy(stored, values.data(), values.size_bytes()); return;
    case RowType::bf16:
      for (std::size_t i = 0; i < values.size(); ++i) {
        // Half of the last place that stays, ties to even.
        const auto bits = std::bit_cast<std::uint32_t>(values[i]);
        const auto rounded = static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
        std::memcpy(stored + 2 * i, &rounded, 2);
      }
      return;
    case RowType::int8: {
      float largest = 0;
      for (const float value : values) largest = std::max(largest, std::abs(value));
      const float scale = largest / kMostInt8, inverse = largest > 0 ? kMostInt8 / largest : 0;
      std::memcpy(stored, &scale, sizeof scale);
      // A sum of this size has no room for fractions: ties to even, as nearbyint, but several values at once.
      constexpr float kNoFractions = 0x1.8p23f;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float rounded = values[i] * inverse + kNoFractions - kNoFractions;
        stored[sizeof scale + i] = static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(rounded, -kMostInt8, kMostInt8)));
      }
      return;
    }
  }
}

}  // namespace tessera::ps
