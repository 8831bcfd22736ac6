// The order of a plan's replicas by the links that were measured between its hosts.
#include <algorithm>

#include "profile/host_links.hpp"
#include "search/search.hpp"

namespace tessera::search {
namespace {

bool may_be_ordered(const plan::Plan& plan) {
  const plan::Strategy& first = plan.stages.front().runs.front().strategy;
  for (const plan::Stage& stage : plan.stages) {
    if (stage.ranks != plan.stages.front().ranks || stage.shares != plan.stages.front().shares) return false;
    for (const plan::StrategyRun& run : stage.runs)
      if (!run.strategy.same_layout(first) || run.strategy.ep > 1 || run.strategy.shards > 0) return false;
  }
  return std::ranges::all_of(plan.ranks, [&](const auto& place) { return place.group == plan.ranks.front().group; });
}

// What each replica of `width` ranks takes.
std::vector<std::int64_t> samples_of(const plan::Plan& plan, const plan::Stage& stage, int width) {
  std::vector<std::int64_t> out;
  for (const plan::Share& share : plan.shares_of(stage)) out.insert(out.end(), share.ranks / width, share.samples * width / share.ranks);
  return out;
}

void reorder(plan::Stage& stage, const std::vector<int>& order, const std::vector<std::int64_t>& samples, int width) {
  const std::vector<int> before = stage.ranks;
  std::vector<plan::Share> shares;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const int from = order[i];
    std::copy_n(before.begin() + from * width, width, stage.ranks.begin() + i * width);
    // Consecutive replicas that take the same stand as one share.
    if (!shares.empty() && samples[from] * shares.back().ranks == shares.back().samples * width) {
      shares.back().ranks += width;
      shares.back().samples += samples[from];
    } else {
      shares.push_back({width, samples[from]});
    }
  }
  if (!stage.shares.empty()) stage.shares = shares;
}

}  // namespace

void order_by_links(plan::Plan& plan, const cluster::ClusterSpec& cluster, const profile::Profile& profile) {
  if (!may_be_ordered(plan)) return;
  const cluster::ResourceGroup& group = cluster.groups.at(plan.ranks.front().group);
  const auto links = profile::HostLinks::of(profile, group.network.name, group.nodes);
  if (!links) return;
  const plan::Strategy& strategy = plan.stages.front().runs.front().strategy;
  const int width = strategy.cp * strategy.tp;
  const std::vector<int> ranks = plan.stages.front().ranks;
  const auto node = [&](int replica, int part) { return plan.ranks[ranks[replica * width + part]].node; };
  const std::vector<int> order = profile::shortest_ring(strategy.dp, [&](int a, int b) {
    double slowest = 0;
    for (int part = 0; part < width; ++part) slowest = std::max(slowest, links->seconds(node(a, part), node(b, part), profile::kRingPiece));
    return slowest;
  });
  for (plan::Stage& stage : plan.stages) reorder(stage, order, samples_of(plan, stage, width), width);
}

}  // namespace tessera::search
