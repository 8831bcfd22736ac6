#include "ps/initial_values.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/hash.hpp"
#include "base/random.hpp"

namespace tessera::ps {
namespace {

// In [0, 1), from the upper or lower half of a draw.
float uniform_of(std::uint64_t draw, std::size_t half) { return static_cast<float>(draw >> (half == 0 ? 40 : 8) & 0xFFFFFF) * 0x1.0p-24f; }

void fill_uniform(Random random, float scale, std::span<float> values) {
  const auto value = [scale](std::uint64_t draw, std::size_t half) { return scale * (2 * uniform_of(draw, half) - 1); };
  for (std::size_t i = 0; i < values.size(); i += 2) {
    const std::uint64_t draw = random.next();
    values[i] = value(draw, 0);
    if (i + 1 < values.size()) values[i + 1] = value(draw, 1);
  }
}

// Box and Muller 1958.
void fill_normal(Random random, float scale, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); i += 2) {
    const std::uint64_t draw = random.next();
    const float radius = scale * std::sqrt(-2 * std::log(1 - uniform_of(draw, 0))),
                angle = 2 * std::numbers::pi_v<float> * uniform_of(draw, 1);
    values[i] = radius * std::cos(angle);
    if (i + 1 < values.size()) values[i + 1] = radius * std::sin(angle);
  }
}

}  // namespace

void start_values(const InitializerSpec& initializer, Key key, std::span<float> values) {
  switch (initializer.kind) {
    case InitialValues::zero: std::ranges::fill(values, 0.0f); return;
    case InitialValues::uniform: fill_uniform(Random(seed_of(initializer.seed, key)), initializer.scale, values); return;
    case InitialValues::normal: fill_normal(Random(seed_of(initializer.seed, key)), initializer.scale, values); return;
  }
}

}  // namespace tessera::ps
