#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "cost/cost_model.hpp"
#include "plan/plan_helper.hpp"
#include "search/exhausted.hpp"
#include "search/search.hpp"

namespace tessera::search {
namespace {

FrontPoint point(double step, int memory) { return {"f", "d", Seconds(step), Bytes(memory), Bytes(1000)}; }

RC_GTEST_PROP(Front, KeepsExactlyWhatNothingBeats, ()) {
  const auto given = *rc::gen::container<std::vector<std::pair<int, int>>>(
      rc::gen::pair(rc::gen::inRange(1, 40), rc::gen::element(100, 200, 300, 400, 500, 900, 1200)));
  std::vector<FrontPoint> points;
  for (const auto& [step, memory] : given) points.push_back(point(step, memory));
  const auto kept = front_of(points);
  for (const auto& [step, memory] : given) {
    const bool beaten = std::any_of(given.begin(), given.end(), [&, s = step, m = memory](const auto& other) {
      return other.first <= s && other.second <= m && (other.first < s || other.second < m);
    });
    const bool is_kept = std::any_of(kept.begin(), kept.end(),
                                     [&, s = step, m = memory](const FrontPoint& p) { return p.step.value == s && p.memory.value == m; });
    RC_ASSERT(is_kept == !beaten);
  }
}

TEST(Front, OfASearchHoldsTheBestPlanAndIsOrdered) {
  const auto job = plan::job_of({.layers = 8,
                                 .hidden = 1024,
                                 .heads = 8,
                                 .kv_heads = 8,
                                 .ffn = 4096,
                                 .seq = 512,
                                 .vocab = 8192,
                                 .global_batch = 32,
                                 .precision = "bf16"});
  const auto cluster = plan::gpu_cluster(1, 4);
  const SearchResult with = search(job, cluster, {}, {.top = 5, .vendors = {}, .front = true});
  const SearchResult without = search(job, cluster, {});
  EXPECT_TRUE(without.front.empty());
  EXPECT_EQ(to_json(with.best), to_json(without.best));
  ASSERT_GT(with.front.size(), 1u);
  for (std::size_t i = 1; i < with.front.size(); ++i) {
    EXPECT_GT(with.front[i].step, with.front[i - 1].step);
    EXPECT_LT(with.front[i].memory / with.front[i].limit, with.front[i - 1].memory / with.front[i - 1].limit);
  }
  const auto fits = [](const FrontPoint& p) { return p.memory <= p.limit; };
  const auto fastest = std::find_if(with.front.begin(), with.front.end(), fits);
  ASSERT_NE(fastest, with.front.end());
  EXPECT_NEAR(fastest->step.value, with.best.predicted->step.value, 1e-5 * fastest->step.value);
}

TEST(MemoryParts, AddUpToThePrediction) {
  const auto job = plan::job_of(
      {.layers = 8, .hidden = 512, .seq = 256, .global_batch = 16, .precision = "bf16", .parallel = "{dp: 2, pp: 2, tp: 2, zero: 1}"});
  const auto cluster = plan::gpu_cluster(1, 8);
  const plan::Plan plan = search(job, cluster, {}).best;
  cost::CostModel cost_model(job.model, cluster, plan.precision);
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    Bytes sum;
    for (const auto& [name, bytes] : cost::memory_terms(plan, rank, cost_model)) sum += bytes;
    EXPECT_EQ(sum, plan.predicted->memory[rank]);
  }
}

}  // namespace
}  // namespace tessera::search
