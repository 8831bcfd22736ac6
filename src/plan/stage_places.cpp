#include "plan/stage_places.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace tessera::plan {
namespace {

// Of a plan's ranks in the order of a group's devices.
auto positions(const Plan& plan, const cluster::ResourceGroup& group) {
  return [&](int rank) { return plan.ranks[rank].node * group.devices_per_node + plan.ranks[rank].device; };
}

}  // namespace

std::vector<Worker> workers_of(const Plan& plan, const cluster::ClusterSpec& cluster) {
  std::map<std::pair<int, int>, int> on_host;
  for (const RankPlace& place : plan.ranks)
    if (cluster.groups[place.group].device.shares_host()) ++on_host[{place.group, place.node}];
  std::vector<Worker> out;
  out.reserve(plan.ranks.size());
  for (const RankPlace& place : plan.ranks) {
    const cluster::ResourceGroup& group = cluster.groups[place.group];
    const bool shared = group.device.shares_host();
    out.push_back(shared ? Worker{place.group, place.threads, on_host.at({place.group, place.node}), group.speed_of(place.node)}
                         : Worker{place.group});
  }
  return out;
}

std::string crowding_of(const Plan& plan, const cluster::ClusterSpec& cluster) {
  struct Host {
    int workers = 0;
    int threads = 0;
  };
  std::map<std::pair<int, int>, Host> hosts;
  for (const RankPlace& place : plan.ranks) {
    Host& host = hosts[{place.group, place.node}];
    ++host.workers;
    host.threads += place.threads;
  }
  std::string out;
  double most = 1;
  for (const auto& [at, host] : hosts) {
    const cluster::ResourceGroup& group = cluster.groups.at(at.first);
    if (!group.device.shares_host() || group.device.cores <= 0) continue;
    const double each = static_cast<double>(host.threads) / group.device.cores;
    if (each <= most) continue;
    most = each;
    out = text(host.workers, " worker", host.workers == 1 ? "" : "s", " with ", host.threads, " thread", host.threads == 1 ? "" : "s",
               " in all share the ", group.device.cores, " core", group.device.cores == 1 ? "" : "s", " of a host of ", group.name,
               " and take turns: fewer workers or threads would be as fast");
  }
  return out;
}

const cluster::Link& link_among(const Plan& plan, const cluster::ClusterSpec& cluster, const std::vector<int>& ranks) {
  const cluster::Link* slowest = nullptr;
  const RankPlace& first = plan.ranks[ranks.front()];
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    const RankPlace& place = plan.ranks[ranks[i]];
    const cluster::Link& link = cluster::link_between(cluster, first.group, first.node, place.group, place.node);
    if (slowest == nullptr || link.bandwidth < slowest->bandwidth) slowest = &link;
  }
  return slowest == nullptr ? cluster.groups[first.group].inside : *slowest;
}

int dealt_over(const Plan& plan, const Stage& stage, const cluster::ResourceGroup& group) {
  if (group.device.shares_host()) return 0;
  const auto position = positions(plan, group);
  const int domains = stage.width() / group.domain();
  if (domains < 2 || group.domain() < 2 || stage.width() % group.domain() != 0) return 0;
  const int first = position(stage.ranks.front()) / group.domain();
  for (int i = 0; i < stage.width(); ++i)
    if (position(stage.ranks[i]) / group.domain() != first + i % domains) return 0;
  return domains;
}

DomainShare domain_share(const Plan& plan, const Stage& stage, const cluster::ResourceGroup& group) {
  const auto position = positions(plan, group);
  const auto apart = [&](int a, int b) { return position(b) != position(a) + 1; };
  if (std::ranges::adjacent_find(stage.ranks, apart) == stage.ranks.end()) return {};
  std::map<int, int> counts;
  for (const int rank : stage.ranks) ++counts[position(rank) / group.domain()];
  const int each = counts.begin()->second;
  const int first = counts.begin()->first;
  const bool consecutive = counts.rbegin()->first - first + 1 == static_cast<int>(counts.size());
  if (!consecutive || counts.size() < 2 || each >= group.domain()) return {};
  const bool even = std::ranges::all_of(counts, [&](const auto& count) { return count.second == each; });
  return even ? DomainShare{each, first} : DomainShare{};
}

int together_everywhere(const Plan& plan, const Stage& stage, const cluster::ResourceGroup& group) {
  const auto position = positions(plan, group);
  const int first = position(stage.ranks.front());
  for (std::size_t i = 1; i < stage.ranks.size(); ++i)
    if (position(stage.ranks[i]) != first + static_cast<int>(i)) return 0;
  const int offset = first % group.domain();
  if (group.nodes_per_domain > 1 || offset == 0 || offset + stage.width() <= group.domain()) return 0;
  return std::gcd(std::gcd(offset, group.domain()), stage.width());
}

bool parts_across_nodes(const Plan& plan, const Stage& stage, const Strategy& strategy, const cluster::ClusterSpec& cluster) {
  const cluster::ResourceGroup& group = cluster.groups[plan.ranks[stage.ranks.front()].group];
  return strategy.tp * strategy.cp > 1 && stage.shares.empty() && dealt_over(plan, stage, group) > 0;
}

}  // namespace tessera::plan
