#include "search/rank.hpp"
#include "search/search.hpp"

#include <gtest/gtest.h>

#include "plan/plan_helper.hpp"

namespace tessera::search {
namespace {

model::JobSpec job() {
  return model::read_job(ConfigNode::parse(
      "model: {preset: llama-2-13b}\ndata: {source: synthetic}\ntrain: {global_batch: 128, precision: bf16}\n", "train.yaml"));
}

TEST(Rank, TakesThePlanWithTheShortestSimulatedStep) {
  const model::JobSpec it = job();
  const cluster::ClusterSpec cluster = plan::gpu_cluster(2, 8, "a100-40");
  SearchResult result = search(it, cluster, {}, {.top = 5, .vendors = {}, .effort = 300'000});
  // As if the cost model had taken all of them for as fast as the fastest, and the slowest for the best.
  ASSERT_FALSE(result.runners_up.empty());
  const Seconds fastest = result.best.predicted->step;
  std::swap(result.best, result.runners_up.back().plan);
  result.best.predicted->step = fastest;
  for (Candidate& candidate : result.runners_up) candidate.plan.predicted->step = fastest;
  const Seconds best = rank_by_simulation(result, it.model, it.train, cluster, {});
  EXPECT_EQ(sim::simulate(result.best, it.model, it.train, cluster, {}).result.step, best);
  for (const Candidate& candidate : result.runners_up)
    EXPECT_GE(sim::simulate(candidate.plan, it.model, it.train, cluster, {}).result.step, best) << candidate.family;
}

TEST(Rank, TakesAFurtherPlanOfTheSameFamilyWhereTheClockPrefersIt) {
  const model::JobSpec it = job();
  const cluster::ClusterSpec cluster = plan::gpu_cluster(2, 8, "a100-40");
  SearchResult result = search(it, cluster, {}, {.top = 5, .vendors = {}, .effort = 300'000});
  const std::string best = plan::to_json(result.best);
  const std::string family = result.best_family;
  // The best one among the further ones, and a slow one in its place.
  ASSERT_FALSE(result.runners_up.empty());
  result.close = {{result.best, result.best_family}};
  result.best = result.runners_up.back().plan;
  result.best_family = result.runners_up.back().family;
  result.runners_up.clear();
  rank_by_simulation(result, it.model, it.train, cluster, {});
  EXPECT_EQ(plan::to_json(result.best), best);
  EXPECT_EQ(result.best_family, family);
  EXPECT_EQ(result.runners_up.size(), 1u);
  EXPECT_TRUE(result.close.empty());
}

TEST(Rank, LeavesPlansFarBehindAlone) {
  const model::JobSpec it = job();
  const cluster::ClusterSpec cluster = plan::gpu_cluster(2, 8, "a100-40");
  SearchResult result = search(it, cluster, {}, {.top = 0, .vendors = {}, .effort = 300'000});
  const std::string before = plan::to_json(result.best);
  // As if all others were predicted to take so much longer, which the clock would not confirm.
  ASSERT_FALSE(result.close.empty());
  const Seconds step = sim::simulate(result.best, it.model, it.train, cluster, {}).result.step;
  for (Candidate& candidate : result.close) candidate.plan.predicted->step = 1.06 * step;
  EXPECT_GT(rank_by_simulation(result, it.model, it.train, cluster, {}).value, 0);
  EXPECT_EQ(plan::to_json(result.best), before);
}

}  // namespace
}  // namespace tessera::search
