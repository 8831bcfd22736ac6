// Internal. What a gradient does to a row and to the state that its optimizer keeps for it.
#pragma once

#include <cstddef>
#include <span>

#include "ps/ps.hpp"

namespace tessera::ps {

// Floats of state beside each row.
std::size_t state_floats(const OptimizerSpec& optimizer, int dimension);
// Sets the state of a row that nothing was pushed to.
void start_state(const OptimizerSpec& optimizer, std::span<float> state);
// Sets the state of a row that nothing was pushed to and whose values are to stay: FTRL computes a row from its state.
void start_state_of(const OptimizerSpec& optimizer, float learning_rate, std::span<const float> values, std::span<float> state);

// The state of a row with `from_dimension` values as that of the same row with `to_dimension`: of values that it had not, as start_state.
void copy_state(const OptimizerSpec& optimizer, std::span<const float> from, int from_dimension, std::span<float> to, int to_dimension);

using Update = void (*)(const OptimizerSpec& optimizer, float learning_rate, const float* gradient, float* row, float* state,
                        int dimension);
Update update_of(const OptimizerSpec& optimizer);

// No NaN, no infinity.
inline bool all_finite(std::span<const float> values) {
  float sum = 0;  // NaN as soon as one is not finite
  for (const float value : values) sum += value * 0.0f;
  return sum == 0;
}

}  // namespace tessera::ps
