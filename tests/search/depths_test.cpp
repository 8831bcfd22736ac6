// Schedules that put several stages on a rank, at any depth.
#include "search/depths.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/expect_error.hpp"
#include "cost/cost_model.hpp"
#include "plan/plan_helper.hpp"
#include "plan/schedule/schedule.hpp"
#include "program/program.hpp"
#include "search/rank.hpp"
#include "search/search.hpp"
#include "sim/given_times_helper.hpp"

namespace tessera::search {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Each stage on one rank instead of its many: what the schedule does is the same.
plan::Plan on_single_ranks(plan::Plan plan) {
  const plan::Pipeline pipeline = pipeline_of(plan);
  plan.ranks.resize(static_cast<std::size_t>(pipeline.size));
  for (int rank = 0; rank < pipeline.size; ++rank)
    for (int chunk = 0; chunk < pipeline.chunks; ++chunk) {
      plan::Stage& stage = plan.stages[static_cast<std::size_t>(stage_at(plan.schedule, rank, chunk, pipeline.size))];
      stage.ranks = {rank};
      stage.runs = {{stage.first_block(), stage.last_block(), {}}};
    }
  plan.global_batch = plan.micro_batches;
  plan.predicted.reset();
  return plan;
}

// Of the schedule alone: a second for each pass of each stage, none for messages.
sim::Result of_schedule(const plan::Plan& plan, const model::ModelSpec& model) {
  const auto programs = program::compile(on_single_ranks(plan), model);
  program::check(programs);
  return sim::run(programs, {Seconds(1), Seconds(1), Seconds(1), Seconds(0)});
}

// Pangu Ultra (Yin et al. 2025): 94 layers with embedding and head over 48 stages, 6 of them on each rank.
TEST(SeveralStages, OfThePublishedPlanOfPanguUltraArePlannedAndShownFolded) {
  const auto cluster = cluster::read_cluster(ConfigNode::parse(
      "name: ascend\ngroups:\n  - {name: ascend, device: ascend910b, nodes: 1024, devices_per_node: 8, inside: hccs, network: rdma-200g, "
      "adapters: 8}\n",
      "cluster.yaml"));
  const model::JobSpec job =
      plan::preset_job("pangu-ultra", 2048, "{dp: 128, tp: 8, pp: 8, schedule: interleaved, chunks: 6, micro_batches: 16}");
  SearchResult result = search(job, cluster, {}, {.top = 3, .vendors = {}});
  const Seconds simulated = rank_by_simulation(result, job.model, job.train, cluster, {});
  EXPECT_NO_THROW(check(result.best, job, cluster));
  ASSERT_EQ(result.best.stages.size(), 48u);
  EXPECT_EQ(plan::pipeline_of(result.best).chunks, 6);
  EXPECT_EQ(result.best.stages.back().last_block(), 96);
  for (const Candidate& candidate : result.close) {
    if (candidate.plan.predicted->step > 1.05 * simulated) continue;
    EXPECT_GE(sim::simulate(candidate.plan, job.model, job.train, cluster, {}).result.step, simulated);
  }
  // (p - 1) / v of m + (p - 1) / v micro-batches (Narayanan et al. 2021, section 2.2.2).
  EXPECT_NEAR(of_schedule(result.best, job.model).bubble, (7.0 / 6) / (16 + 7.0 / 6), 1e-12);
  const std::string text = explain(result, job.model, cluster);
  EXPECT_THAT(text, AllOf(HasSubstr("48 stages of "), HasSubstr("i, i + 8, i + 16, .. i + 40 on the same ranks, for i from 0 to 7"),
                          HasSubstr("7, 15, 23, .. 47  7168 .. 8191"), Not(HasSubstr("layers.40"))));
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 60);
}

// The steps of all cuts of all blocks under one strategy, as templates have it.
double by_enumeration(const plan::Plan& like, const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  cost::CostModel cost_model(job.model, cluster, like.precision);
  const double limit = cost_model.memory_limit(0);
  double best = std::numeric_limits<double>::infinity();
  const auto cuts = all_cuts(job.model.block_count(), static_cast<int>(like.stages.size()), 100'000);
  EXPECT_FALSE(cuts.empty());
  const plan::Strategy strategy = like.stages.front().runs.front().strategy;
  plan::Plan plan = like;
  for (const std::vector<int>& cut : cuts) {
    for (std::size_t s = 0; s < plan.stages.size(); ++s) plan.stages[s].runs = {{cut[s], cut[s + 1], strategy}};
    const plan::Prediction predicted = cost::predict(plan, cost_model);
    bool fits = true;
    for (const Bytes bytes : predicted.memory) fits = fits && static_cast<double>(bytes.value) <= limit;
    if (fits) best = std::min(best, predicted.step.value);
  }
  return best;
}

TEST(SeveralStages, EqualsEnumerationOfUnequalDepths) {
  const auto cluster = plan::gpu_cluster(1, 4);
  for (const char* parallel : {"{pp: 2, tp: 1, dp: 2, cp: 1, zero: 1, schedule: interleaved, chunks: 2, micro_batches: 4, recompute: none}",
                               "{pp: 2, tp: 2, dp: 1, cp: 1, zero: 0, schedule: interleaved, chunks: 3, micro_batches: 8, recompute: none}",
                               "{pp: 4, tp: 1, dp: 1, cp: 1, zero: 0, schedule: interleaved, chunks: 2, micro_batches: 4, recompute: none}",
                               "{pp: 2, tp: 2, dp: 1, cp: 1, zero: 0, schedule: zb-v, micro_batches: 8, recompute: none}",
                               "{pp: 4, tp: 1, dp: 1, cp: 1, zero: 0, schedule: dualpipe-v, micro_batches: 8, recompute: none}"})
    for (const int layers : {7, 9, 11}) {
      const model::JobSpec job = plan::job_of({.layers = layers,
                                               .hidden = 2048,
                                               .heads = 16,
                                               .kv_heads = 16,
                                               .ffn = 8192,
                                               .seq = 2048,
                                               .vocab = 32000,
                                               .global_batch = 16,
                                               .precision = "bf16",
                                               .parallel = parallel});
      const SearchResult result = search(job, cluster, {}, {.top = 0, .vendors = {}});
      EXPECT_NO_THROW(check(result.best, job, cluster)) << parallel;
      const double best = by_enumeration(result.best, job, cluster);
      EXPECT_NEAR(result.best.predicted->step.value, best, 1e-9 * best) << parallel << ' ' << layers;
      // The closed form ranks what the simulator then runs: they do not differ much.
      const double simulated = sim::simulate(result.best, job.model, job.train, cluster, {}).result.step.value;
      EXPECT_GT(simulated, 0.95 * best) << parallel << ' ' << layers;
      EXPECT_LT(simulated, 1.25 * best) << parallel << ' ' << layers;
    }
}

// Where the depths are unequal too, every rank ends with each micro-batch passed through each of its stages.
TEST(SeveralStages, OfAVOfUnequalDepthRunAsTheScheduleSays) {
  const auto cluster = plan::gpu_cluster(1, 4);
  const model::JobSpec job = plan::job_of({.layers = 11,
                                           .hidden = 1024,
                                           .heads = 16,
                                           .kv_heads = 16,
                                           .ffn = 4096,
                                           .seq = 1024,
                                           .vocab = 32000,
                                           .global_batch = 16,
                                           .precision = "bf16",
                                           .parallel = "{pp: 4, dp: 1, tp: 1, cp: 1, schedule: zb-v, micro_batches: 16}"});
  const SearchResult result = search(job, cluster, {}, {.top = 0, .vendors = {}});
  std::vector<int> depths;
  for (const plan::Stage& stage : result.best.stages) depths.push_back(stage.last_block() - stage.first_block());
  ASSERT_EQ(depths.size(), 8u);
  EXPECT_NE(*std::min_element(depths.begin(), depths.end()), *std::max_element(depths.begin(), depths.end()));
  const auto programs = program::compile(result.best, job.model);
  EXPECT_NO_THROW(program::check(programs));
  // With passes all alike ZB-V leaves the forward passes of the warm-up alone: p - 1 of one chunk (Qi et al. 2024).
  const double passes = 16 * 2 * 3;
  EXPECT_NEAR(of_schedule(result.best, job.model).step.value, passes + 3, 1e-9);
  // No rank computes for less time than its own blocks take, and the slowest rank bounds the step.
  const sim::Result run = sim::simulate(result.best, job.model, job.train, cluster, {}).result;
  EXPECT_GE(run.step.value, result.best.predicted->step.value * 0.98);
  EXPECT_LE(run.step.value, result.best.predicted->step.value * 1.15);
}

TEST(SeveralStages, AreCutSoThatTheBusiestRankIsLeastBusy) {
  // The embedding takes nothing and the head as much as three layers.
  std::vector<double> seconds(12, 1.0);
  seconds.front() = 0;
  seconds.back() = 3;
  // 13 seconds for two ranks.
  const Placement placement{2, 2, plan::Schedule::interleaved};
  const std::vector<int> cuts = balanced_cuts(seconds, 0, std::vector<double>(static_cast<std::size_t>(placement.ranks), 1.0), placement);
  ASSERT_EQ(cuts.size(), 5u);
  double busy[2] = {};
  for (int s = 0; s < 4; ++s) {
    EXPECT_LT(cuts[static_cast<std::size_t>(s)], cuts[static_cast<std::size_t>(s) + 1]);
    for (int b = cuts[static_cast<std::size_t>(s)]; b < cuts[static_cast<std::size_t>(s) + 1]; ++b)
      busy[placement.rank_of(s)] += seconds[static_cast<std::size_t>(b)];
  }
  EXPECT_EQ(std::max(busy[0], busy[1]), 7);
}

// Where not all layers fit without recomputation, as few as will do.
TEST(SeveralStages, ComputeAgainNoMoreLayersThanMemoryAsksFor) {
  const auto cluster = plan::gpu_cluster(16, 8, "h100-sxm");
  const auto planned = [&](const std::string& more) {
    const model::JobSpec job = plan::preset_job("llama-3-70b", 512, "{tp: 4, pp: 4, cp: 1, micro_batches: 32, " + more + "}");
    plan::Plan plan = search(job, cluster, {}, {.top = 0, .vendors = {}}).best;
    EXPECT_NO_THROW(check(plan, job, cluster));
    return plan;
  };
  for (const char* schedule : {"schedule: interleaved, chunks: 4", "schedule: zb-v"}) {
    EXPECT_THROW(planned(text(schedule, ", recompute: none")), Error) << schedule;
    const plan::Plan all = planned(text(schedule, ", recompute: full"));
    const plan::Plan some = planned(schedule);
    EXPECT_LT(some.predicted->step, 0.95 * all.predicted->step) << schedule;
    int again = 0;
    for (const plan::Stage& stage : some.stages)
      for (const plan::StrategyRun& run : stage.runs)
        if (run.strategy.recompute == model::Recompute::full) again += run.last - run.first;
    EXPECT_GT(again, 0) << schedule;
    EXPECT_LT(again, 60) << schedule;
  }
}

TEST(SeveralStages, OfTooManyChunksOrNoneAreRefused) {
  using tessera::testing::error_of;
  const auto cluster = plan::gpu_cluster(1, 8);
  const auto refusal = [&](const std::string& parallel) {
    const model::JobSpec job = plan::preset_job("llama-2-7b", 64, parallel);
    const Error error = error_of([&] { search(job, cluster, {}, {.top = 0, .vendors = {}}); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_config);
    return std::string(error.what());
  };
  EXPECT_THAT(refusal("{pp: 4, schedule: interleaved, chunks: 9}"),
              HasSubstr("4 ranks of a pipeline with 9 stages each are more stages than the model's 34 blocks"));
  EXPECT_THAT(refusal("{pp: 4, schedule: zb-v, chunks: 2}"), HasSubstr("the schedule is zb-v"));
  EXPECT_THAT(refusal("{pp: 4, chunks: 2}"), HasSubstr("add `schedule: interleaved`"));
  EXPECT_THAT(refusal("{pp: 4, schedule: interleaved, chunks: 1}"), HasSubstr("chunks 2 or more"));
}

}  // namespace
}  // namespace tessera::search
