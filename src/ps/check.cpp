#include <cmath>
#include <optional>

#include "base/error.hpp"
#include "base/units.hpp"
#include "ps/ps.hpp"

namespace tessera::ps {
namespace {

constexpr int kMostDimension = 65536;

void expect(bool holds, const TableSpec& spec, const char* member, double value, const char* expected) {
  if (holds) return;
  throw Error(ErrorCode::invalid_config, text("table ", spec.name.empty() ? "(without a name)" : spec.name, ": ", member, " is ", value),
              {}, expected);
}

bool positive(float value) { return std::isfinite(value) && value > 0; }
bool not_negative(float value) { return std::isfinite(value) && value >= 0; }
bool decays(float beta) { return beta >= 0 && beta < 1; }

}  // namespace

void check(const TableSpec& spec) {
  if (spec.name.empty()) throw Error(ErrorCode::invalid_config, "a table has no name", {}, "a name");
  expect(spec.dimension >= 1 && spec.dimension <= kMostDimension, spec, "dimension", spec.dimension, "1 to 65536");
  const OptimizerSpec& optimizer = spec.optimizer;
  expect(not_negative(optimizer.learning_rate), spec, "learning_rate", optimizer.learning_rate, "a number, 0 or more");
  expect(not_negative(optimizer.epsilon), spec, "epsilon", optimizer.epsilon, "a number, 0 or more");
  expect(not_negative(optimizer.initial_moment), spec, "initial_moment", optimizer.initial_moment, "a number, 0 or more");
  expect(decays(optimizer.beta1), spec, "beta1", optimizer.beta1, "0 or more, less than 1");
  expect(decays(optimizer.beta2), spec, "beta2", optimizer.beta2, "0 or more, less than 1");
  expect(not_negative(optimizer.l1), spec, "l1", optimizer.l1, "a number, 0 or more");
  expect(not_negative(optimizer.l2), spec, "l2", optimizer.l2, "a number, 0 or more");
  expect(not_negative(optimizer.beta), spec, "beta", optimizer.beta, "a number, 0 or more");
  if (optimizer.rule == Rule::ftrl)
    expect(positive(optimizer.learning_rate), spec, "learning_rate", optimizer.learning_rate, "more than 0: FTRL divides by it");
  if (optimizer.clip_norm) expect(positive(*optimizer.clip_norm), spec, "clip_norm", *optimizer.clip_norm, "more than 0");
  expect(spec.staleness >= 0, spec, "staleness", spec.staleness, "a number of steps, 0 or more");
  expect(not_negative(spec.initializer.scale), spec, "scale", spec.initializer.scale, "a number, 0 or more");
}

}  // namespace tessera::ps
