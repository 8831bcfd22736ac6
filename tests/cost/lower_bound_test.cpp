#include "cost/lower_bound.hpp"

#include <gtest/gtest.h>

#include "plan/plan_helper.hpp"

namespace tessera::cost {
namespace {

struct Case {
  model::ModelSpec model;
  cluster::ClusterSpec cluster;
  plan::Plan plan;
};

// Stages of equal width, one after the other on the devices of each group.
Case case_of(const std::string& preset, const cluster::ClusterSpec& cluster, int stages, int width, std::int64_t micro_batches) {
  Case out{plan::preset_job(preset, 64).model, cluster, {}};
  out.plan.model_fingerprint = out.model.fingerprint();
  out.plan.cluster_fingerprint = cluster.fingerprint();
  out.plan.precision = model::Precision::bf16;
  out.plan.micro_batches = micro_batches;
  out.plan.global_batch = 64 * micro_batches;
  int group = 0;
  int next = 0;
  const int blocks = out.model.block_count();
  for (int s = 0; s < stages; ++s) {
    plan::Stage stage;
    if (next + width >
        cluster.groups[static_cast<std::size_t>(group)].nodes * cluster.groups[static_cast<std::size_t>(group)].devices_per_node) {
      ++group;
      next = 0;
    }
    const int per_node = cluster.groups[static_cast<std::size_t>(group)].devices_per_node;
    for (int i = 0; i < width; ++i, ++next) {
      stage.ranks.push_back(out.plan.world_size());
      out.plan.ranks.push_back({group, next / per_node, next % per_node});
    }
    plan::Strategy strategy;
    strategy.dp = width;
    stage.runs.push_back({blocks * s / stages, blocks * (s + 1) / stages, strategy});
    out.plan.stages.push_back(stage);
  }
  return out;
}

double bound_of(const Case& c, const std::string& name) {
  for (const auto& [key, seconds] : least_times(c.plan, c.model, c.cluster))
    if (key == name) return seconds.value;
  return -1;
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
  sharded.plan.micro_batches = 4;
  sharded.plan.stages[0].runs[0].strategy.zero = 3;
  EXPECT_NEAR(bound_of(sharded, "network"), (1 + 4) * 2 * parameters * 3 / 4 / network.bandwidth.value, 1e-9);
}

TEST(LowerBound, CountsMessagesBetweenStagesOfDifferentNodes) {
  const Case c = case_of("llama-2-7b", plan::gpu_cluster(2, 8), 4, 4, 3);
  // Only the second stage sends to another node: 4096 positions of 4096 in 16 bits for each sample.
  EXPECT_NEAR(bound_of(c, "network"), 3 * 64 * 2.0 * 4096 * 4096 / c.cluster.groups[0].network.bandwidth.value, 1e-9);
}

}  // namespace
}  // namespace tessera::cost
