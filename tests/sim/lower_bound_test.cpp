// No simulated step is below what data sheets allow.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "cost/cost_model.hpp"
#include "cost/lower_bound.hpp"
#include "plan/any_case.hpp"
#include "sim/sim.hpp"

namespace tessera::sim {
namespace {

void expect_at_least(const plan::Case& c) {
  plan::check(c.plan, c.model, c.cluster);
  cost::CostModel cost_model(c.model, c.cluster, c.plan.precision);
  for (const plan::Stage& stage : c.plan.stages)
    RC_PRE(cost_model.divides(cost_model.devices_of(c.plan, stage), stage.runs.front().strategy, c.plan.samples()));
  for (const auto& [name, seconds] : cost::least_times(c.plan, c.model, c.cluster)) RC_LOG() << name << ' ' << seconds.value << '\n';
  RC_LOG() << cluster::to_yaml(c.cluster) << plan::to_json(c.plan) << '\n';
  const double step = sim::predict(c.plan, cost_model).step.value;
  for (const auto& [resource, least] : cost::least_times(c.plan, c.model, c.cluster)) RC_ASSERT(step >= least.value * (1 - 1e-9));
}

RC_GTEST_PROP(LowerBound, NoSimulatedStepIsBelowIt, ()) {
  plan::Case c = plan::any_case();
  if (*rc::gen::arbitrary<bool>()) plan::place_otherwise(c);
  expect_at_least(c);
}

RC_GTEST_PROP(LowerBound, NoSimulatedStepOfStagesOfUnequalWidthIsBelowIt, ()) {
  plan::Case c = plan::any_case();
  plan::join_stages(c);
  expect_at_least(c);
}

}  // namespace
}  // namespace tessera::sim
