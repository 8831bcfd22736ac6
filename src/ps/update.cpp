#include "ps/update.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace tessera::ps {
namespace {

void add(const OptimizerSpec&, float, const float* __restrict gradient, float* __restrict row, float*, int dimension) {
  for (int i = 0; i < dimension; ++i) row[i] += gradient[i];
}

void sgd(const OptimizerSpec&, float learning_rate, const float* __restrict gradient, float* __restrict row, float*, int dimension) {
  for (int i = 0; i < dimension; ++i) row[i] -= learning_rate * gradient[i];
}

float mean_square(const float* values, int dimension) {
  float sum = 0;
  for (int i = 0; i < dimension; ++i) sum += values[i] * values[i];
  return sum / static_cast<float>(dimension);
}

void adagrad_row(const OptimizerSpec& optimizer, float learning_rate, const float* __restrict gradient, float* __restrict row,
                 float* __restrict state, int dimension) {
  state[0] += mean_square(gradient, dimension);
  const float rate = learning_rate / (std::sqrt(state[0]) + optimizer.epsilon);
  for (int i = 0; i < dimension; ++i) row[i] -= rate * gradient[i];
}

void adagrad(const OptimizerSpec& optimizer, float learning_rate, const float* __restrict gradient, float* __restrict row,
             float* __restrict state, int dimension) {
  const float epsilon = optimizer.epsilon;
  for (int i = 0; i < dimension; ++i) {
    state[i] += gradient[i] * gradient[i];
    row[i] -= learning_rate * gradient[i] / (std::sqrt(state[i]) + epsilon);
  }
}

// 1 - beta^count.
float correction(float beta, std::uint32_t count) { return 1 - std::pow(beta, static_cast<float>(count)); }

// State: the count's bits, m, then v of each value or of the row.
template <bool kRowMoment>
void adam(const OptimizerSpec& optimizer, float learning_rate, const float* __restrict gradient, float* __restrict row,
          float* __restrict state, int dimension) {
  const std::uint32_t count = std::bit_cast<std::uint32_t>(state[0]) + 1;
  state[0] = std::bit_cast<float>(count);
  const float beta1 = optimizer.beta1, beta2 = optimizer.beta2, epsilon = optimizer.epsilon;
  const float rate = learning_rate / correction(beta1, count), scale = 1 / std::sqrt(correction(beta2, count));
  float* const m = state + 1;
  float* const v = m + dimension;
  if constexpr (kRowMoment) {
    v[0] = beta2 * v[0] + (1 - beta2) * mean_square(gradient, dimension);
    const float row_rate = rate / (std::sqrt(v[0]) * scale + epsilon);
    for (int i = 0; i < dimension; ++i) {
      m[i] = beta1 * m[i] + (1 - beta1) * gradient[i];
      row[i] -= row_rate * m[i];
    }
  } else {
    for (int i = 0; i < dimension; ++i) {
      m[i] = beta1 * m[i] + (1 - beta1) * gradient[i];
      v[i] = beta2 * v[i] + (1 - beta2) * gradient[i] * gradient[i];
      row[i] -= rate * m[i] / (std::sqrt(v[i]) * scale + epsilon);
    }
  }
}

// State: z, then n.
void ftrl(const OptimizerSpec& optimizer, float learning_rate, const float* __restrict gradient, float* __restrict row,
          float* __restrict state, int dimension) {
  float* const z = state;
  float* const n = state + dimension;
  for (int i = 0; i < dimension; ++i) {
    const float before = std::sqrt(n[i]);
    n[i] += gradient[i] * gradient[i];
    const float after = std::sqrt(n[i]);
    z[i] += gradient[i] - (after - before) / learning_rate * row[i];
    row[i] = std::abs(z[i]) <= optimizer.l1
                 ? 0
                 : -(z[i] - std::copysign(optimizer.l1, z[i])) / ((optimizer.beta + after) / learning_rate + optimizer.l2);
  }
}

// A row's state: some floats, arrays with one for each value, and more floats.
struct StateParts {
  std::size_t before = 0, arrays = 0, after = 0;
};

StateParts parts_of(const OptimizerSpec& optimizer) {
  const std::size_t moments = optimizer.row_moment ? 0 : 1, moment = optimizer.row_moment ? 1 : 0;
  switch (optimizer.rule) {
    case Rule::add:
    case Rule::sgd: return {};
    case Rule::adagrad: return {.arrays = moments, .after = moment};
    case Rule::adam: return {.before = 1, .arrays = 1 + moments, .after = moment};
    case Rule::ftrl: return {.arrays = 2};
  }
  return {};
}

}  // namespace

std::size_t state_floats(const OptimizerSpec& optimizer, int dimension) {
  const StateParts parts = parts_of(optimizer);
  return parts.before + parts.arrays * static_cast<std::size_t>(dimension) + parts.after;
}

void start_state(const OptimizerSpec& optimizer, std::span<float> state) {
  std::ranges::fill(state, optimizer.rule == Rule::adagrad ? optimizer.initial_moment : 0.0f);
}

void start_state_of(const OptimizerSpec& optimizer, float learning_rate, std::span<const float> values, std::span<float> state) {
  start_state(optimizer, state);
  if (optimizer.rule != Rule::ftrl) return;
  // The z that gives the value where n is 0.
  const float weight = optimizer.beta / learning_rate + optimizer.l2;
  for (std::size_t i = 0; i < values.size(); ++i)
    state[i] = values[i] == 0 ? 0 : -(values[i] * weight + std::copysign(optimizer.l1, values[i]));
}

void copy_state(const OptimizerSpec& optimizer, std::span<const float> from, int from_dimension, std::span<float> to, int to_dimension) {
  const StateParts parts = parts_of(optimizer);
  const auto from_values = static_cast<std::size_t>(from_dimension), to_values = static_cast<std::size_t>(to_dimension);
  const std::size_t values = std::min(from_values, to_values);
  start_state(optimizer, to);
  std::ranges::copy(from.first(parts.before), to.begin());
  for (std::size_t array = 0; array < parts.arrays; ++array)
    std::ranges::copy(from.subspan(parts.before + array * from_values, values), to.subspan(parts.before + array * to_values).begin());
  std::ranges::copy(from.last(parts.after), to.last(parts.after).begin());
}

Update update_of(const OptimizerSpec& optimizer) {
  switch (optimizer.rule) {
    case Rule::add: return add;
    case Rule::sgd: return sgd;
    case Rule::adagrad: return optimizer.row_moment ? adagrad_row : adagrad;
    case Rule::adam: return optimizer.row_moment ? adam<true> : adam<false>;
    case Rule::ftrl: return ftrl;
  }
  return add;
}

}  // namespace tessera::ps
