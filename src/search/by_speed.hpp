// Internal: hosts of one group that differ in speed, as groups of their own for the search.
#pragma once

#include <utility>
#include <vector>

#include "cluster/cluster.hpp"
#include "plan/plan.hpp"

namespace tessera::search {

// The cluster must outlive it.
class BySpeed {
 public:
  explicit BySpeed(const cluster::ClusterSpec& cluster);

  // Consecutive nodes of equal speed are one group. Between the groups that one has become stands its own network, where the cluster has
  // no other; else the link between groups.
  const cluster::ClusterSpec& cluster() const { return split_ ? *split_ : cluster_; }
  // A plan for that cluster becomes one for the cluster that was given.
  void restore(plan::Plan& plan) const;

 private:
  const cluster::ClusterSpec& cluster_;
  std::optional<cluster::ClusterSpec> split_;    // where some group has several speeds
  std::vector<std::pair<int, int>> first_node_;  // by group of split_: its first node, as {group, node} of cluster_
};

}  // namespace tessera::search
