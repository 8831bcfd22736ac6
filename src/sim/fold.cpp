#include "sim/fold.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "plan/schedule/schedule.hpp"
#include "plan/stage_places.hpp"

namespace tessera::sim {
namespace {

using Node = std::pair<int, int>;  // group, node

Node node_of(const plan::Plan& plan, int rank) { return {plan.ranks[rank].group, plan.ranks[rank].node}; }

// What a group of ranks looks like from outside: its slowest link, and how many of its members share a node with how many.
using Shape = std::pair<const cluster::Link*, std::multiset<int>>;

Shape shape_of(const plan::Plan& plan, const cluster::ClusterSpec& cluster, const std::vector<int>& ranks) {
  std::map<Node, int> members;
  for (const int rank : ranks) ++members[node_of(plan, rank)];
  Shape shape{&plan::link_among(plan, cluster, ranks), {}};
  for (const auto& [node, count] : members) shape.second.insert(count);
  return shape;
}

bool alike(const plan::Plan& plan, const cluster::ClusterSpec& cluster, const std::vector<std::vector<int>>& groups) {
  const Shape first = shape_of(plan, cluster, groups.front());
  return std::ranges::all_of(groups, [&](const std::vector<int>& group) { return shape_of(plan, cluster, group) == first; });
}

bool cut_alike(const plan::Stage& stage) {
  const plan::Strategy& first = stage.runs.front().strategy;
  return std::ranges::all_of(stage.runs, [&](const plan::StrategyRun& run) { return run.strategy.same_layout(first); });
}

bool same_layout(const plan::Stage& stage, const plan::Stage& next) {
  return cut_alike(next) && stage.runs.front().strategy.same_layout(next.runs.front().strategy) &&
         stage.runs.back().strategy.sequence_parallel == next.runs.front().strategy.sequence_parallel;
}

// Nodes by what stands on them.
std::vector<int> node_kinds(const plan::Plan& plan, const std::vector<int>& pipeline_rank_of) {
  std::map<Node, std::map<int, int>> standing;
  for (int rank = 0; rank < plan.world_size(); ++rank) ++standing[node_of(plan, rank)][pipeline_rank_of[rank]];
  std::map<std::pair<int, std::map<int, int>>, int> kinds;
  std::vector<int> out;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    const Node node = node_of(plan, rank);
    out.push_back(kinds.try_emplace({node.first, standing[node]}, static_cast<int>(kinds.size())).first->second);
  }
  return out;
}

}  // namespace

std::vector<std::vector<int>> tensor_groups(const plan::Stage& stage) {
  const int tp = stage.runs.front().strategy.tp;
  std::vector<std::vector<int>> out;
  for (auto first = stage.ranks.begin(); first != stage.ranks.end(); first += tp) out.emplace_back(first, first + tp);
  return out;
}

std::vector<std::vector<int>> data_groups(const plan::Stage& stage) {
  const int tp = stage.runs.front().strategy.tp;
  std::vector<std::vector<int>> out(tp);
  for (std::size_t i = 0; i < stage.ranks.size(); ++i) out[i % tp].push_back(stage.ranks[i]);
  return out;
}

std::vector<std::vector<int>> pairs(const plan::Stage& stage, const plan::Stage& other) {
  std::vector<std::vector<int>> out;
  for (std::size_t i = 0; i < stage.ranks.size(); ++i) out.push_back({stage.ranks[i], other.ranks[i]});
  return out;
}

Fold no_fold(const plan::Plan& plan) {
  std::vector<int> all(plan.world_size());
  std::iota(all.begin(), all.end(), 0);
  return {all, all, node_kinds(plan, all)};
}

Fold fold_of(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  const int pipeline_size = plan::pipeline_of(plan).size;
  const std::vector<plan::Worker> devices = plan::workers_of(plan, cluster);
  Fold fold = fold_by_pipeline_rank(plan);
  for (int pipeline_rank = 0; pipeline_rank < pipeline_size; ++pipeline_rank) {
    const plan::Stage& stage = plan.stages[pipeline_rank];
    const int chosen = stage.ranks.front();
    if (!stage.shares.empty() || !cut_alike(stage)) return no_fold(plan);
    for (const int rank : stage.ranks)
      if (devices[rank] != devices[chosen] || fold.node_kind[rank] != fold.node_kind[chosen]) return no_fold(plan);
    if (!alike(plan, cluster, tensor_groups(stage)) || !alike(plan, cluster, data_groups(stage))) return no_fold(plan);
  }
  for (std::size_t s = 0; s + 1 < plan.stages.size(); ++s)
    if (!same_layout(plan.stages[s], plan.stages[s + 1]) || !alike(plan, cluster, pairs(plan.stages[s], plan.stages[s + 1])))
      return no_fold(plan);
  return fold;
}

Fold fold_by_pipeline_rank(const plan::Plan& plan) {
  const int pipeline_size = plan::pipeline_of(plan).size;
  std::vector<int> pipeline_rank_of(plan.world_size(), 0);
  Fold fold;
  for (int pipeline_rank = 0; pipeline_rank < pipeline_size; ++pipeline_rank) {
    for (const int rank : plan.stages[pipeline_rank].ranks) pipeline_rank_of[rank] = pipeline_rank;
    fold.ranks.push_back(plan.stages[pipeline_rank].ranks.front());
  }
  std::sort(fold.ranks.begin(), fold.ranks.end());
  for (const int pipeline_rank : pipeline_rank_of)
    fold.program_of.push_back(static_cast<int>(
        std::lower_bound(fold.ranks.begin(), fold.ranks.end(), plan.stages[pipeline_rank].ranks.front()) - fold.ranks.begin()));
  fold.node_kind = node_kinds(plan, pipeline_rank_of);
  fold.folded = true;
  return fold;
}

}  // namespace tessera::sim
