// Internal: which devices and which plans a job leaves open to the search.
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

// Groups whose devices may work together in one plan: either CPU hosts or accelerators, with times from one source (calibrations, or a
// profile).
struct Devices {
  std::vector<int> groups;                         // indices into ClusterSpec::groups
  std::vector<std::vector<NodeRanks>> node_ranks;  // by group of the cluster, fewest ranks first; empty for those that are not in `groups`
  bool uniform = false;                            // BlockSpace::uniform
  bool workers = false;                            // they are CPU hosts
  bool trained = false;                            // the trainer runs plans on them (plan::stands_whole)
};
// The devices that compute in the job's precision, of these vendors if any are named. `cluster: {local: ...}` and `{lab: ...}` say how many
// workers there are; otherwise workers may share a host's cores evenly in every way, and as the fixed degrees ask.
std::vector<Devices> devices_of(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const std::vector<std::string>& vendors);

// The most ranks of a group, with its nodes divided among ranks in one of these ways.
int most_ranks(const cluster::ResourceGroup& group, const std::vector<NodeRanks>& ways);
// Whether the job says how many hosts or workers there are; if not, the search uses as many as pay.
bool counts_hosts(const model::JobSpec& job);
// The space that `parallel:` leaves open; the second function's on these devices.
BlockSpace space_of(const model::ParallelChoice& parallel);
BlockSpace space_of(const model::JobSpec& job, const Devices& devices);
// Throws invalid_config, with the line of `parallel` and the nearest valid degree, when what is fixed there cannot divide.
void check_given(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Devices& devices);
// What is fixed, as the user wrote it: "tp 8, pp 4, schedule zb-h1".
std::string given_text(const model::ParallelChoice& parallel);

// Splits groups whose hosts differ in speed into groups of equal speed, for the search. The cluster must outlive it.
class BySpeed {
 public:
  explicit BySpeed(const cluster::ClusterSpec& cluster);

  // Consecutive nodes of equal speed are one group. Between the groups that one has become stands its own network, where the cluster has
  // no other; else the link between groups.
  const cluster::ClusterSpec& cluster() const { return split_ ? *split_ : cluster_; }
  // Turns a plan for cluster() into one for the cluster that was given.
  void restore(plan::Plan& plan) const;

 private:
  const cluster::ClusterSpec& cluster_;
  std::optional<cluster::ClusterSpec> split_;    // set if some group has several speeds
  std::vector<std::pair<int, int>> first_node_;  // by group of split_: its first node, as {group, node} of cluster_
};

}  // namespace tessera::search
