#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>

#include "base/expect_error.hpp"
#include "cost/cost.hpp"
#include "plan/plan.hpp"
#include "plan/plan_helper.hpp"
#include "search/search.hpp"

namespace tessera::search {
namespace {

using tessera::testing::error_of;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(Search, SaysHowMuchMemoryIsMissingAndWhatWouldFit) {
  plan::JobShape shape{.layers = 32,
                       .hidden = 4096,
                       .heads = 32,
                       .kv_heads = 8,
                       .ffn = 14336,
                       .seq = 2048,
                       .vocab = 32000,
                       .global_batch = 8,
                       .precision = "bf16"};
  const Error automatic = error_of([&] { search(plan::job_of(shape), plan::gpu_cluster(1, 1, "a100-40"), {}); });
  EXPECT_EQ(automatic.code(), ErrorCode::resource_exhausted);
  EXPECT_THAT(automatic.what(), HasSubstr("no plan fits"));
  EXPECT_THAT(automatic.what(),
              ContainsRegex("needs [0-9]+ GiB of each a100-40, [0-9]+ [GM]iB more than the 38.0 GiB that it has for a plan"));
  EXPECT_THAT(automatic.what(), HasSubstr("what would fit: 2 times the nodes; devices with"));
  // And it does.
  EXPECT_NO_THROW(search(plan::job_of(shape), plan::gpu_cluster(2, 1, "a100-40"), {}));
  // With the optimizer on the host one device of 80 GiB is enough.
  const plan::Plan alone = search(plan::job_of(shape), plan::gpu_cluster(1, 1), {}).best;
  const auto& runs = alone.stages.front().runs;
  EXPECT_TRUE(std::any_of(runs.begin(), runs.end(), [](const plan::StrategyRun& run) { return run.strategy.offload_optimizer; }));
  shape.parallel = "{dp: 2, zero: 0}";
  const Error fixed = error_of([&] { search(plan::job_of(shape), plan::gpu_cluster(2, 1, "a100-40"), {}); });
  EXPECT_THAT(fixed.what(), ContainsRegex("needs [0-9]+ GiB of each a100-40, [0-9]+ [GM]iB more than the 38.0 GiB that it has for a plan"));
  EXPECT_THAT(fixed.what(), HasSubstr("what would fit: parallel with dp 2 alone"));
  EXPECT_THAT(fixed.what(), HasSubstr("its largest parts: gradients "));
}

TEST(Search, CountsTheMemoryOfAllWorkersOfAHostTogether) {
  const plan::JobShape shape{.layers = 4,
                             .hidden = 1024,
                             .heads = 8,
                             .kv_heads = 8,
                             .ffn = 4096,
                             .vocab = 8192,
                             .cluster = "{local: {devices: 4}}",
                             .parallel = "{dp: 4}"};
  const auto job = plan::job_of(shape);
  const plan::Plan plan = search(job, plan::cpu_cluster(4), {}).best;
  Bytes sum;
  for (Bytes bytes : plan.predicted->memory) sum += bytes;
  const std::vector<Bytes> limits = cost::memory_limits(plan, plan::cpu_cluster(4));
  EXPECT_EQ(limits, std::vector<Bytes>(4, Bytes(cost::memory_limit(plan::cpu_cluster(4).groups.front().device).value / 4)));
  const std::int64_t mebibytes = sum.value >> 20;
  EXPECT_NO_THROW(search(job, plan::cpu_cluster(4, 1, mebibytes * 12 / 10), {}));
  EXPECT_THROW(search(job, plan::cpu_cluster(4, 1, plan.predicted->memory[0].value >> 20), {}), Error);
}

TEST(Search, RecomputesOrShardsOnlyWhenMemoryAsksForIt) {
  const plan::JobShape shape{.layers = 16,
                             .hidden = 2048,
                             .heads = 16,
                             .kv_heads = 16,
                             .ffn = 8192,
                             .seq = 2048,
                             .vocab = 32000,
                             .global_batch = 64,
                             .precision = "bf16"};
  const auto roomy = search(plan::job_of(shape), plan::gpu_cluster(1, 1, "a100-80"), {}).best;
  const auto computes_again = [](const plan::Plan& plan) {
    const std::vector<plan::StrategyRun>& runs = plan.stages[0].runs;
    return std::any_of(runs.begin(), runs.end(),
                       [](const plan::StrategyRun& run) { return run.strategy.recompute == model::Recompute::full; });
  };
  EXPECT_FALSE(computes_again(roomy));
  plan::JobShape fixed = shape;
  fixed.parallel = "{micro_batches: 1}";
  const auto cramped = search(plan::job_of(fixed), plan::gpu_cluster(1, 1, "a100-80"), {}).best;
  EXPECT_TRUE(computes_again(cramped));
}

// Only as many blocks are computed again as the memory asks for.
TEST(Search, RecomputesSomeBlocksOfAWorker) {
  const plan::JobShape shape{.layers = 12,
                             .hidden = 512,
                             .heads = 8,
                             .kv_heads = 8,
                             .ffn = 2048,
                             .seq = 1024,
                             .global_batch = 8,
                             .cluster = "{local: {devices: 1}}",
                             .parallel = "{micro_batches: 1}"};
  const auto job = plan::job_of(shape);
  const auto held = [&](const std::string& recompute) {
    plan::JobShape given = shape;
    given.parallel = "{micro_batches: 1, recompute: " + recompute + "}";
    return search(plan::job_of(given), plan::cpu_cluster(1), {}).best.predicted->memory.front().value >> 20;
  };
  const std::int64_t middle = (held("none") + held("full")) / 2 * 10 / 9;
  const plan::Plan best = search(job, plan::cpu_cluster(1, 1, middle), {}).best;
  int again = 0;
  for (const plan::StrategyRun& run : best.stages.front().runs)
    if (run.strategy.recompute == model::Recompute::full) again += run.last - run.first;
  EXPECT_GT(again, 0);
  EXPECT_LT(again, shape.layers);
  check(best, job, plan::cpu_cluster(1, 1, middle));
}

}  // namespace
}  // namespace tessera::search
