#include "cost/lower_bound.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "cost/cost_model.hpp"
#include "plan/any_case.hpp"

namespace tessera::cost {
namespace {

using plan::Case;
using plan::case_of;

double bound_of(const Case& c, const std::string& name) {
  for (const auto& [key, seconds] : least_times(c.plan, c.model, c.cluster))
    if (key == name) return seconds.value;
  return -1;
}

RC_GTEST_PROP(LowerBound, NoPriceIsBelowIt, ()) {
  Case c = plan::any_case();
  if (*rc::gen::arbitrary<bool>()) plan::place_otherwise(c);
  plan::check(c.plan, c.model, c.cluster);
  CostModel cost_model(c.model, c.cluster, c.plan.precision);
  for (const plan::Stage& stage : c.plan.stages)
    RC_PRE(cost_model.divides(cost_model.devices_of(c.plan, stage), stage.runs.front().strategy, c.plan.samples()));
  const double price = predict(c.plan, cost_model).step.value;
  for (const auto& [name, seconds] : least_times(c.plan, c.model, c.cluster)) RC_LOG() << name << ' ' << seconds.value << '\n';
  RC_LOG() << "price " << price << '\n' << cluster::to_yaml(c.cluster);
  for (const plan::Stage& stage : c.plan.stages) RC_LOG() << to_text(stage.runs.front().strategy) << '\n';
  RC_LOG() << c.plan.micro_batches << " micro-batches, " << c.plan.schedule_text() << '\n';
  for (const auto& [resource, least] : least_times(c.plan, c.model, c.cluster)) RC_ASSERT(price >= least.value * (1 - 1e-9));
}

TEST(LowerBound, KnowsThePeakOfTheDevice) {
  const Case c = case_of("llama-2-7b", plan::gpu_cluster(1, 8), 1, 8, 1);
  const double flops = model::training_flops_per_sample(c.model).value * 64 / 8;
  const double peak = c.cluster.groups[0].device.peak_of(model::Precision::bf16).value;
  // All but the half of the scores that a causal mask hides.
  EXPECT_LT(bound_of(c, "computing"), flops / peak);
  EXPECT_GT(bound_of(c, "computing"), 0.9 * flops / peak);
}

TEST(LowerBound, CountsGradientsThatLeaveANode) {
  const Case c = case_of("llama-2-7b", plan::gpu_cluster(4, 8), 1, 32, 1);
  const double parameters = static_cast<double>(c.model.parameter_count());
  const cluster::Link& network = c.cluster.groups[0].network;
  EXPECT_NEAR(bound_of(c, "network"), 2 * 2 * parameters * 3 / 4 / network.bandwidth.value, 1e-9);
  Case sharded = c;
  sharded.plan.micro_batches = 2;
  sharded.plan.stages[0].runs[0].strategy.zero = 3;
  EXPECT_NEAR(bound_of(sharded, "network"), (1 + 2) * 2 * parameters * 3 / 4 / network.bandwidth.value, 1e-9);
}

// Of stages of six on nodes of eight, the second one begins on the first node and ends on the second: its replicas exchange over the
// network.
TEST(LowerBound, StagesThatBeginWithinANodeArePricedOverTheNetwork) {
  const auto exchange = [](double gigabits, int width) {
    auto cluster = plan::gpu_cluster(3, 8);
    cluster.groups[0].network.bandwidth = BytesPerSecond(gigabits * 1e9 / 8);
    const Case c = case_of("llama-2-7b", cluster, 4, width, 1);
    CostModel cost_model(c.model, c.cluster, c.plan.precision);
    return cost_model.block(1, 0, c.plan.stages.front().runs.front().strategy, 96).exchange;
  };
  EXPECT_GT(exchange(1, 6), 10 * exchange(100, 6));
  EXPECT_EQ(exchange(1, 4), exchange(100, 4));
}

TEST(LowerBound, CountsMessagesBetweenStagesOfDifferentNodes) {
  const Case c = case_of("llama-2-7b", plan::gpu_cluster(2, 8), 4, 4, 3);
  // Only the second stage sends to another node: 4096 positions of 4096 in 16 bits for each sample.
  EXPECT_NEAR(bound_of(c, "network"), 3 * 64 * 2.0 * 4096 * 4096 / c.cluster.groups[0].network.bandwidth.value, 1e-9);
}

}  // namespace
}  // namespace tessera::cost
