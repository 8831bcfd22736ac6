// Plans at random on accelerators at random, for property tests.
#pragma once

#include <rapidcheck.h>
#include <algorithm>
#include <cmath>
#include <string>

#include "plan/any_strategy.hpp"
#include "plan/plan_helper.hpp"

namespace tessera::plan {

// A plan of a model on a cluster.
struct Case {
  model::ModelSpec model;
  cluster::ClusterSpec cluster;
  Plan plan;
};

// Stages of equal width, one after the other on the devices of each group.
inline Case case_of(const std::string& preset, const cluster::ClusterSpec& cluster, int stages, int width, std::int64_t micro_batches) {
  Case out{preset_job(preset, 64).model, cluster, {}};
  out.plan.model_fingerprint = out.model.fingerprint();
  out.plan.cluster_fingerprint = cluster.fingerprint();
  out.plan.precision = model::Precision::bf16;
  out.plan.micro_batches = micro_batches;
  out.plan.global_batch = 64 * micro_batches;
  int group = 0;
  int next = 0;
  const int blocks = out.model.block_count();
  for (int s = 0; s < stages; ++s) {
    Stage stage;
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
    Strategy strategy;
    strategy.dp = width;
    stage.runs.push_back({blocks * s / stages, blocks * (s + 1) / stages, strategy});
    out.plan.stages.push_back(stage);
  }
  return out;
}

inline cluster::Link link_of(double low, double high) {
  return {"link", BytesPerSecond(std::pow(10.0, low + (high - low) * *rc::gen::inRange(0, 101) / 100) / 8), Seconds(1e-6)};
}

inline Strategy any_priced_strategy(int width, bool routed) {
  Strategy out = any_strategy(width);
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

inline Case any_case() {
  const auto group = [](const char* name) {
    cluster::ResourceGroup out = gpu_cluster(1, 1, *rc::gen::element("a100-80", "h100-sxm", "b200")).groups[0];
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
  for (Stage& stage : out.plan.stages) stage.runs.front().strategy = any_priced_strategy(width, routed);
  out.plan.schedule = *rc::gen::element(Schedule::one_f_one_b, Schedule::gpipe, Schedule::zb_h1, Schedule::zb_h2);
  return out;
}

// Two neighbouring stages of one group become one of twice the width.
inline void join_stages(Case& c) {
  if (c.plan.stages.size() < 2) return;
  const auto s = static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(c.plan.stages.size()) - 1));
  Stage& first = c.plan.stages[s];
  const Stage second = c.plan.stages[s + 1];
  const auto group_of = [&](const Stage& stage) { return c.plan.ranks[static_cast<std::size_t>(stage.ranks.front())].group; };
  if (group_of(first) != group_of(second)) return;
  first.ranks.insert(first.ranks.end(), second.ranks.begin(), second.ranks.end());
  first.runs.back().last = second.runs.back().last;
  first.runs.back().strategy.dp *= 2;
  c.plan.stages.erase(c.plan.stages.begin() + static_cast<std::ptrdiff_t>(s) + 1);
}

// The same stages of the first group, each on some devices of every node; or each dealt over its nodes, a rank on each in turn.
inline void place_otherwise(Case& c) {
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
          dealt ? RankPlace{0, s * nodes + i % nodes, i / nodes} : RankPlace{0, i / each, s * each + i % each};
}

}  // namespace tessera::plan
