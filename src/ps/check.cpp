#include <cmath>
#include <cstdint>
#include <optional>
#include <set>

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

void check(const Admission& admission, const TableSpec& spec) {
  expect(admission.after >= 1 && admission.after <= 15, spec, "admission.after", admission.after, "1 to 15");
  if (admission.probability)
    expect(*admission.probability > 0 && *admission.probability <= 1, spec, "admission.probability", *admission.probability,
           "more than 0, 1 at most");
}

void check(const Eviction& eviction, const TableSpec& spec) {
  if (eviction.unseen) expect(*eviction.unseen >= 1, spec, "eviction.unseen", *eviction.unseen, "a number of periods, 1 or more");
  if (eviction.below) expect(not_negative(*eviction.below), spec, "eviction.below", *eviction.below, "a score, 0 or more");
}

void check(const std::vector<GrowthStep>& growth, const TableSpec& spec) {
  for (std::size_t i = 0; i < growth.size(); ++i) {
    const auto& [seen, dimension] = growth[i];
    if (i == 0) expect(seen == 0, spec, "growth.seen", seen, "0 of the first step");
    if (i > 0) expect(std::isfinite(seen) && seen > growth[i - 1].seen, spec, "growth.seen", seen, "more with each step");
    expect(dimension > (i == 0 ? 0 : growth[i - 1].dimension), spec, "growth.dimension", dimension, "1 or more, and more with each step");
    expect(dimension <= spec.dimension, spec, "growth.dimension", dimension, "the table's dimension at most");
  }
}

void check(const Lifecycle& lifecycle, const TableSpec& spec) {
  constexpr int kMostSlotBits = 16;
  constexpr double kMostWaiting = 1e9;
  expect(lifecycle.decay > 0 && lifecycle.decay <= 1, spec, "lifecycle.decay", lifecycle.decay, "more than 0, 1 at most");
  expect(not_negative(lifecycle.click_weight), spec, "lifecycle.click_weight", lifecycle.click_weight, "a number, 0 or more");
  expect(not_negative(lifecycle.unclicked_weight), spec, "lifecycle.unclicked_weight", lifecycle.unclicked_weight, "a number, 0 or more");
  const auto waiting = static_cast<double>(lifecycle.waiting_keys);
  expect(waiting >= 1 && waiting <= kMostWaiting, spec, "lifecycle.waiting_keys", waiting, "1 to 1e9");
  expect(lifecycle.forget_after >= 1, spec, "lifecycle.forget_after", lifecycle.forget_after, "a number of periods, 1 or more");
  expect(lifecycle.slot_bits >= 0 && lifecycle.slot_bits <= kMostSlotBits, spec, "lifecycle.slot_bits", lifecycle.slot_bits, "0 to 16");
  check(lifecycle.admission, spec);
  check(lifecycle.eviction, spec);
  check(lifecycle.growth, spec);
  std::set<std::uint32_t> seen;
  for (const SlotLifecycle& slot : lifecycle.slots) {
    expect(slot.slot < std::uint32_t{1} << lifecycle.slot_bits, spec, "lifecycle.slots.slot", slot.slot, "a number of slot_bits bits");
    expect(seen.insert(slot.slot).second, spec, "lifecycle.slots.slot", slot.slot, "each slot once");
    expect(positive(slot.learning_rate_scale), spec, "lifecycle.slots.learning_rate_scale", slot.learning_rate_scale, "more than 0");
    if (slot.admission) check(*slot.admission, spec);
    if (slot.eviction) check(*slot.eviction, spec);
    check(slot.growth, spec);
  }
}

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
  if (spec.lifecycle) check(*spec.lifecycle, spec);
}

}  // namespace tessera::ps
