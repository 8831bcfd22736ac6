#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "plan/plan.hpp"
#include "plan/plan_helper.hpp"
#include "search/search.hpp"
#include "sim/sim.hpp"

namespace tessera::sim {
namespace {

// Every layer takes `forward` and `backward` seconds, everything else next to nothing.
profile::Profile layer_times(const model::JobSpec& job, double forward, double backward) {
  profile::Profile profile;
  for (const auto& repeat : job.model.repeats) {
    const bool layer = repeat.block.kind == "transformer_layer";
    profile::BlockSample sample;
    sample.kind = repeat.block.kind;
    sample.forward = Seconds(layer ? forward : 1e-12);
    sample.backward = Seconds(layer ? backward : 1e-12);
    profile.blocks.push_back(sample);
  }
  profile.optimizers.push_back({"adamw", 1, 1, model::Precision::f32, 1e-18});
  return profile;
}

plan::Plan plan_with(const model::JobSpec& job, const cluster::ClusterSpec& cluster) { return search::search(job, cluster, {}).best; }

double part(const plan::Prediction& prediction, const std::string& name) {
  for (const auto& [key, seconds] : prediction.parts)
    if (key == name) return seconds.value;
  return 0;
}

// Narayanan et al. 2019, section 2.2: with p equal stages and m micro-batches a step takes (m + p - 1) (f + b), in both schedules.
RC_GTEST_PROP(Predict, EqualStagesTakeWhatTheFormulaSays, ()) {
  const int stages = *rc::gen::inRange(1, 7);
  const int micro_batches = *rc::gen::inRange(1, 13);
  const char* schedule = *rc::gen::element("1f1b", "gpipe");
  const double forward = *rc::gen::inRange(1, 100) * 1e-3;
  const double backward = *rc::gen::inRange(1, 100) * 1e-3;
  // CPU devices take measured times; as many hosts as there are stages.
  auto cluster = plan::cpu_cluster(1, stages);
  cluster.groups[0].network = {"ideal", BytesPerSecond(1e18), Seconds(0), false};
  const auto job = plan::job_of({.layers = stages,
                                 .global_batch = micro_batches,
                                 .parallel = text("{dp: 1, tp: 1, pp: ", stages, ", micro_batches: ", micro_batches,
                                                  ", schedule: ", schedule, ", recompute: none}")});
  const plan::Prediction prediction = *search::search(job, cluster, layer_times(job, forward, backward)).best.predicted;
  const double expected = (micro_batches + stages - 1) * (forward + backward);
  RC_LOG() << prediction.step.value << " expected " << expected << "\n";
  RC_ASSERT(std::abs(prediction.step.value / expected - 1) < 1e-6);
  RC_ASSERT(std::abs(prediction.bubble - (stages - 1.0) / (micro_batches + stages - 1)) < 1e-6);
}

TEST(Predict, RecomputationCostsOneMoreForwardPassOfTheInnerBlocks) {
  const plan::JobShape plain{.layers = 4, .global_batch = 2, .parallel = "{dp: 1, pp: 1, tp: 1, micro_batches: 2, recompute: none}"};
  plan::JobShape again = plain;
  again.parallel = "{dp: 1, pp: 1, tp: 1, micro_batches: 2, recompute: full}";
  const auto job = plan::job_of(plain);
  const auto profile = layer_times(job, 3e-3, 5e-3);
  const auto without = *search::search(job, plan::cpu_cluster(1), profile).best.predicted;
  const auto with = *search::search(plan::job_of(again), plan::cpu_cluster(1), profile).best.predicted;
  EXPECT_NEAR((with.step - without.step).value, 2 * 4 * 3e-3, 1e-9);
  EXPECT_NEAR(part(with, "recompute"), 2 * 4 * 3e-3, 1e-9);
  EXPECT_LT(with.memory[0], without.memory[0]);
}

RC_GTEST_PROP(Predict, PartsAddUpToTheStep, ()) {
  const int dp = 1 << *rc::gen::inRange(0, 2);
  const int tp = 1 << *rc::gen::inRange(0, 2);
  const int pp = *rc::gen::inRange(1, 4);
  const bool delayed = *rc::gen::arbitrary<bool>();
  const auto job = plan::job_of({.layers = 5,
                                 .hidden = 256,
                                 .seq = 128,
                                 .tied = *rc::gen::arbitrary<bool>(),
                                 .global_batch = 16,
                                 .precision = *rc::gen::element("fp32", "bf16"),
                                 .clip = 0,
                                 .parallel = text("{dp: ", dp, ", pp: ", pp, ", tp: ", tp, ", zero: ", *rc::gen::inRange(0, 2),
                                                  ", delayed_exchange: ", delayed ? "true" : "false", "}")});
  const plan::Plan plan = search::search(job, plan::gpu_cluster(2, dp * tp * pp), {}).best;
  RC_ASSERT(plan.delayed_exchange == delayed);
  const plan::Prediction& prediction = *plan.predicted;
  double sum = 0;
  for (const auto& [name, seconds] : prediction.parts) sum += seconds.value;
  RC_ASSERT(std::abs(sum / prediction.step.value - 1) < 1e-6);
  RC_ASSERT(prediction.bubble >= 0 && prediction.bubble < 1);
}

TEST(Predict, GpipeHoldsAllMicroBatchesAndOneForwardOneBackwardOnlyThoseInFlight) {
  const plan::JobShape shape{.layers = 8,
                             .hidden = 512,
                             .seq = 512,
                             .global_batch = 16,
                             .parallel = "{dp: 1, tp: 1, pp: 2, micro_batches: 16, schedule: 1f1b, recompute: none}"};
  plan::JobShape gpipe = shape;
  gpipe.parallel = "{dp: 1, tp: 1, pp: 2, micro_batches: 16, schedule: gpipe, recompute: none}";
  const auto cluster = plan::gpu_cluster(1, 2);
  const auto in_turn = plan_with(plan::job_of(shape), cluster);
  auto all_first = in_turn;
  all_first.schedule = plan::Schedule::gpipe;
  const auto job = plan::job_of(gpipe);
  const profile::Profile profile;
  cost::CostModel cost_model(job.model, job.train, cluster, profile);
  all_first.predicted = sim::predict(all_first, cost_model);
  for (int rank = 0; rank < 2; ++rank) {
    const model::BlockShard shard;
    std::int64_t saved = 0;
    for (int b = in_turn.stages[rank].first_block(); b < in_turn.stages[rank].last_block(); ++b)
      saved += model::cost_of(*job.model.blocks()[b].spec, shard).saved.value;
    EXPECT_EQ((all_first.predicted->memory[rank] - in_turn.predicted->memory[rank]).value, (16 - (2 - rank)) * saved);
  }
}

TEST(Predict, ShardingTheOptimizerStateSavesItsShareOfTheMemory) {
  const plan::JobShape shape{
      .layers = 4, .hidden = 512, .global_batch = 4, .parallel = "{dp: 4, pp: 1, tp: 1, zero: 0, micro_batches: 1, recompute: none}"};
  plan::JobShape sharded = shape;
  sharded.parallel = "{dp: 4, pp: 1, tp: 1, zero: 1, micro_batches: 1, recompute: none}";
  const auto cluster = plan::gpu_cluster(1, 4);
  const auto job = plan::job_of(shape);
  const Bytes whole = plan_with(job, cluster).predicted->memory[0];
  const Bytes quarter = plan_with(plan::job_of(sharded), cluster).predicted->memory[0];
  EXPECT_EQ((whole - quarter).value, 8 * job.model.parameter_count() * 3 / 4);
}

TEST(Predict, IsTheSimulatedStepOnAnyDevices) {
  const profile::Profile none;
  for (const auto& cluster : {plan::cpu_cluster(4), plan::gpu_cluster(1, 4)})
    for (const char* precision : {"fp32", "bf16"}) {
      const auto job = plan::job_of({.layers = 6,
                                     .hidden = 512,
                                     .global_batch = 8,
                                     .precision = precision,
                                     .parallel = "{dp: 2, tp: 1, pp: 2, micro_batches: 2, recompute: full}"});
      const plan::Plan plan = plan_with(job, cluster);
      cost::CostModel cost_model(job.model, job.train, cluster, none);
      const plan::Prediction prediction = sim::predict(plan, cost_model);
      const Result result = simulate(plan, job.model, job.train, cluster, none).result;
      EXPECT_EQ(prediction.step, result.step);
      double sum = 0;
      for (const auto& [name, seconds] : prediction.parts) sum += seconds.value;
      EXPECT_NEAR(sum, prediction.step.value, 1e-9 * sum);
      // What is repeated is told apart from the backward pass.
      EXPECT_GT(part(prediction, "recompute"), 0);
      EXPECT_GT(part(prediction, "backward"), part(prediction, "recompute"));
      EXPECT_EQ(prediction.memory, memory_of(plan, cost_model));
    }
}

TEST(Predict, OverlapHidesReductionBehindTheBackwardPass) {
  plan::JobShape shape{.layers = 8,
                       .hidden = 512,
                       .seq = 512,
                       .global_batch = 2,
                       .parallel = "{dp: 2, pp: 1, tp: 1, micro_batches: 1, zero: 0, recompute: none}"};
  const auto job = plan::job_of(shape);
  const auto cluster = plan::gpu_cluster(1, 2, "p40");
  plan::Plan buckets = plan_with(job, cluster);
  buckets.bucket_size = Bytes(1 << 20);
  plan::Plan one = buckets;
  one.bucket_size = Bytes(std::int64_t{1} << 40);
  const profile::Profile profile;
  cost::CostModel cost_model(job.model, job.train, cluster, profile);
  EXPECT_LT(sim::predict(buckets, cost_model).step, sim::predict(one, cost_model).step);
}

}  // namespace
}  // namespace tessera::sim
