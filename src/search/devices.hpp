// Internal: what of a cluster, and of the space of plans, a job leaves open to the search.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"
#include "search/block_search.hpp"

namespace tessera::search {

// Groups whose devices may be in one plan: of one source of times (calibrations, or a profile), and either CPU hosts or accelerators.
struct Devices {
  std::vector<int> groups;                         // of the cluster
  std::vector<std::vector<NodeRanks>> node_ranks;  // by group of the cluster, fewest ranks first; empty for those that are not in `groups`
  bool uniform = false;                            // BlockSpace::uniform
  bool workers = false;                            // CPU hosts
  bool trained = false;                            // the trainer runs plans for them (plan::stands_whole)
};
// Those that compute in the job's precision, of these vendors, if any are named. `cluster: {local: ...}` and `{lab: ...}` say how many
// workers there are; otherwise every way to share a host's cores evenly is open, and those that the fixed degrees ask for.
std::vector<Devices> devices_of(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const std::vector<std::string>& vendors);

// Ranks of a group that may work at most, with its nodes dealt to ranks in one of these ways.
int most_ranks(const cluster::ResourceGroup& group, const std::vector<NodeRanks>& ways);
// Whether the job says how many hosts or workers there are; otherwise as many work as pay.
bool counts_hosts(const model::JobSpec& job);
// All of the space that `parallel:` leaves open; on these devices.
BlockSpace space_of(const model::ParallelChoice& parallel);
BlockSpace space_of(const model::JobSpec& job, const Devices& devices);
// Throws invalid_config at the line of `parallel` when what is fixed there cannot divide, with the nearest that can.
void check_given(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Devices& devices);
// As the user wrote it: "tp 8, pp 4, schedule zb-h1".
std::string given_text(const model::ParallelChoice& parallel);

// Hosts of one group that differ in speed, as groups of their own for the search. The cluster must outlive it.
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
