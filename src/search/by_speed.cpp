#include "search/by_speed.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace tessera::search {

BySpeed::BySpeed(const cluster::ClusterSpec& cluster) : cluster_(cluster) {
  const bool even = std::all_of(cluster.groups.begin(), cluster.groups.end(), [](const cluster::ResourceGroup& group) {
    return std::adjacent_find(group.speeds.begin(), group.speeds.end(), std::not_equal_to<>()) == group.speeds.end();
  });
  if (even) return;
  split_ = cluster;
  split_->groups.clear();
  for (std::size_t g = 0; g < cluster.groups.size(); ++g) {
    const cluster::ResourceGroup& whole = cluster.groups[g];
    for (int first = 0, last = 0; first < whole.nodes; first = last) {
      while (last < whole.nodes && whole.speed_of(last) == whole.speed_of(first)) ++last;
      cluster::ResourceGroup& part = split_->groups.emplace_back(whole);
      part.nodes = last - first;
      part.speeds.assign(static_cast<std::size_t>(part.nodes), whole.speed_of(first));
      if (part.nodes < whole.nodes) part.name += text(" at ", fixed(whole.speed_of(first), 2), " x");
      first_node_.emplace_back(static_cast<int>(g), first);
    }
  }
  if (cluster.groups.size() == 1) split_->between = cluster.groups.front().network;
}

void BySpeed::restore(plan::Plan& plan) const {
  if (!split_) return;
  for (plan::RankPlace& place : plan.ranks) {
    const auto& [group, node] = first_node_.at(static_cast<std::size_t>(place.group));
    place.group = group;
    place.node += node;
  }
  plan.cluster_fingerprint = cluster_.fingerprint();
}

}  // namespace tessera::search
