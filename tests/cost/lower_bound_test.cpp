#include "cost/lower_bound.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <cmath>

#include "cost/cost_model.hpp"
#include "plan/any_strategy.hpp"
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

cluster::Link link_of(double low, double high) {
  return {"link", BytesPerSecond(std::pow(10.0, low + (high - low) * *rc::gen::inRange(0, 101) / 100) / 8), Seconds(1e-6)};
}

plan::Strategy any_priced_strategy(int width, bool routed) {
  plan::Strategy out = plan::any_strategy(width);
  if (out.dp <= 8 && *rc::gen::arbitrary<bool>()) {
    out.cp *= out.dp;
    out.dp = 1;
  }
  out.context = *rc::gen::element(model::ContextKind::ring, model::ContextKind::ulysses);
  if (out.context == model::ContextKind::ulysses && out.cp * out.tp > 32) out.context = model::ContextKind::ring;
  out.recompute = *rc::gen::element(model::Recompute::none, model::Recompute::selective, model::Recompute::full);
  out.sequence_parallel = out.tp > 1 && *rc::gen::arbitrary<bool>();
  out.offload_optimizer = *rc::gen::inRange(0, 8) == 0;
  if (routed)
    while (out.ep < 8 && out.copies() % (2 * out.ep) == 0 && *rc::gen::arbitrary<bool>()) out.ep *= 2;
  return out;
}

Case any_case() {
  const auto group = [](const char* name) {
    cluster::ResourceGroup out = plan::gpu_cluster(1, 1, *rc::gen::element("a100-80", "h100-sxm", "b200")).groups[0];
    out.name = name;
    out.nodes = 1 << *rc::gen::inRange(0, 4);
    out.devices_per_node = 1 << *rc::gen::inRange(0, 4);
    out.adapters = 1 << *rc::gen::inRange(0, 4);
    out.inside = link_of(9, 13);
    out.network = link_of(6, 12);
    out.network.shared = *rc::gen::arbitrary<bool>();
    return out;
  };
  cluster::ClusterSpec cluster;
  cluster.name = "any";
  cluster.groups.push_back(group("first"));
  if (*rc::gen::inRange(0, 3) == 0) cluster.groups.push_back(group("second"));
  cluster.between = link_of(6, 12);
  int least = 1 << 10;
  for (const cluster::ResourceGroup& each : cluster.groups) least = std::min(least, each.nodes * each.devices_per_node);
  int width = 1;
  while (2 * width <= std::min(least, 32) && *rc::gen::inRange(0, 4) > 0) width *= 2;
  int most = 0;
  for (const cluster::ResourceGroup& each : cluster.groups) most += each.nodes * each.devices_per_node / width;
  const bool routed = *rc::gen::inRange(0, 3) == 0;
  Case out =
      case_of(routed ? "mixtral-8x7b" : "llama-2-7b", cluster, *rc::gen::inRange(1, std::min(most, 8) + 1), width, *rc::gen::inRange(1, 9));
  for (plan::Stage& stage : out.plan.stages) stage.runs.front().strategy = any_priced_strategy(width, routed);
  out.plan.schedule = *rc::gen::element(plan::Schedule::one_f_one_b, plan::Schedule::gpipe, plan::Schedule::zb_h1, plan::Schedule::zb_h2);
  return out;
}

// The same stages of the first group, each on some devices of every node; or each dealt over its nodes, a rank on each in turn.
void place_otherwise(Case& c) {
  const cluster::ResourceGroup& group = c.cluster.groups[0];
  const int width = c.plan.stages[0].width();
  const auto stages = static_cast<int>(c.plan.stages.size());
  if (stages * width > group.nodes * group.devices_per_node || width % group.nodes != 0) return;
  const int each = width / group.nodes;
  const bool dealt = *rc::gen::arbitrary<bool>();
  if (dealt && width % group.devices_per_node != 0) return;
  const int nodes = dealt ? width / group.devices_per_node : group.nodes;
  for (int s = 0; s < stages; ++s)
    for (int i = 0; i < width; ++i)
      c.plan.ranks[static_cast<std::size_t>(s * width + i)] =
          dealt ? plan::RankPlace{0, s * nodes + i % nodes, i / nodes} : plan::RankPlace{0, i / each, s * each + i % each};
}

RC_GTEST_PROP(LowerBound, NoPriceIsBelowIt, ()) {
  Case c = any_case();
  if (*rc::gen::arbitrary<bool>()) place_otherwise(c);
  plan::check(c.plan, c.model, c.cluster);
  CostModel cost_model(c.model, c.cluster, c.plan.precision);
  for (const plan::Stage& stage : c.plan.stages)
    RC_PRE(cost_model.divides(cost_model.devices_of(c.plan, stage), stage.runs.front().strategy, c.plan.samples()));
  const double price = predict(c.plan, cost_model).step.value;
  for (const auto& [name, seconds] : least_times(c.plan, c.model, c.cluster)) RC_LOG() << name << ' ' << seconds.value << '\n';
  RC_LOG() << "price " << price << '\n' << cluster::to_yaml(c.cluster);
  for (const plan::Stage& stage : c.plan.stages) RC_LOG() << to_text(stage.runs.front().strategy) << '\n';
  RC_LOG() << c.plan.micro_batches << " micro-batches, " << c.plan.schedule_text() << '\n';
  RC_ASSERT(price >= lower_bound(c.plan, c.model, c.cluster).value * (1 - 1e-9));
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

TEST(LowerBound, CountsMessagesBetweenStagesOfDifferentNodes) {
  const Case c = case_of("llama-2-7b", plan::gpu_cluster(2, 8), 4, 4, 3);
  // Only the second stage sends to another node: 4096 positions of 4096 in 16 bits for each sample.
  EXPECT_NEAR(bound_of(c, "network"), 3 * 64 * 2.0 * 4096 * 4096 / c.cluster.groups[0].network.bandwidth.value, 1e-9);
}

}  // namespace
}  // namespace tessera::cost
