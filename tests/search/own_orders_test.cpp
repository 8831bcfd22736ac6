// Pipelines whose passes run in orders of their own, and steps that overlap.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cost/cost.hpp"
#include "plan/plan.hpp"
#include "plan/plan_helper.hpp"
#include "search/search.hpp"
#include "sim/sim.hpp"

namespace tessera::search {
namespace {

using ::testing::HasSubstr;

// Layers that four hosts cannot share evenly, behind links over which replicas would wait for gradients.
const plan::JobShape kShape{
    .layers = 6, .hidden = 512, .heads = 8, .kv_heads = 8, .ffn = 2048, .seq = 256, .vocab = 8192, .global_batch = 8};

cluster::ClusterSpec four_hosts() {
  auto out = plan::cpu_cluster(1, 4);
  out.groups[0].network.bandwidth = BytesPerSecond(2e7);
  return out;
}

model::JobSpec job_of(plan::JobShape shape, double clip) {
  shape.clip = clip;
  return plan::job_of(shape);
}

TEST(Search, PassesRunInAnOrderMadeForTheirTimesWhereThatIsFaster) {
  const auto cluster = four_hosts();
  for (const double clip : {0.0, 1.0}) {
    const auto job = job_of(kShape, clip);
    const SearchResult result = search(job, cluster, {});
    check(result.best, job, cluster);
    ASSERT_GT(result.best.stages.size(), 1u) << to_json(result.best);
    EXPECT_FALSE(result.best.order.empty()) << to_json(result.best);
    EXPECT_THAT(explain(result, job.model, cluster), HasSubstr("in an order of its own"));
    // Steps overlap where nothing waits for the norm of all gradients.
    EXPECT_EQ(result.best.delayed_exchange, clip == 0);
    for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "zb-v"}) {
      plan::JobShape shape = kShape;
      shape.parallel = text("{schedule: ", schedule, "}");
      EXPECT_LT(result.best.predicted->step, search(job_of(shape, clip), cluster, {}).best.predicted->step) << schedule;
    }
    // What was asked for is what runs.
    plan::JobShape given = kShape;
    given.parallel = "{pp: 4, schedule: zb-h1}";
    EXPECT_TRUE(search(job_of(given, clip), cluster, {}).best.order.empty());
  }
}

// Halves of layers can be dealt in many ways, of which the best by the times of a known schedule leaves ranks idle for 9.5 % of the step.
TEST(Search, CutsGetOrdersOfTheirOwn) {
  const model::JobSpec job = model::read_job(
      ConfigNode::parse("model: {arch: bert, split_layers: true, hidden: 256, layers: 6, heads: 4, seq: 128, vocab: 2000}\n"
                        "train: {global_batch: 16, precision: fp32, optimizer: {kind: sgd, clip: 0}}\nparallel: {pp: 4, dp: 1, tp: 1}\n",
                        "split.yaml"));
  auto cluster = four_hosts();
  cluster.groups[0].network.bandwidth = BytesPerSecond(1.25e8);
  const plan::Plan plan = search(job, cluster, {}).best;
  check(plan, job, cluster);
  EXPECT_FALSE(plan.order.empty());
  EXPECT_LT(plan.predicted->bubble, 0.075);
}

// The first memory has room for passes in a known order only.
TEST(Search, OrdersOfTheirOwnFitTheMemory) {
  plan::JobShape shape = kShape;
  shape.parallel = "{pp: 4, dp: 1, tp: 1}";
  const auto job = job_of(shape, 0);
  int own = 0;
  for (const double mib : {592.0, 600.0}) {
    auto cluster = four_hosts();
    cluster.groups[0].device.memory = Bytes(static_cast<std::int64_t>(mib * (1 << 20)));
    const plan::Plan plan = search(job, cluster, {}).best;
    EXPECT_NO_THROW(cost::check_fits(plan, plan.predicted->memory, cluster)) << mib;
    own += plan.order.empty() ? 0 : 1;
  }
  EXPECT_EQ(own, 1);
}

TEST(Search, AStepOfAPipelineWithoutReplicasMayBeginBeforeTheOneBeforeItHasEnded) {
  const auto cluster = four_hosts();
  plan::JobShape shape = kShape;
  shape.parallel = "{pp: 4, dp: 1, tp: 1, micro_batches: 4, schedule: zb-h1}";
  plan::Plan plan = search(job_of(shape, 0), cluster, {}).best;
  const profile::Profile none;
  const auto job = job_of(shape, 0);
  cost::CostModel cost_model(job.model, job.train, cluster, none);
  const Seconds together = sim::predict(plan, cost_model).step;
  plan.delayed_exchange = true;
  EXPECT_LT(sim::predict(plan, cost_model).step, together);
  EXPECT_THAT(plan.schedule_text(), HasSubstr("steps overlap"));
}

}  // namespace
}  // namespace tessera::search
