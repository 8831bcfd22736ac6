// Internal: which groups of a cluster a job may be planned on together, and how many ranks on each of their nodes.
#pragma once

#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "search/block_search.hpp"

namespace tessera::search {

// Groups whose devices may be in one plan: of one source of times (calibrations, or a profile), and either CPU hosts or accelerators.
struct Devices {
  std::vector<int> groups;                         // of the cluster
  std::vector<std::vector<NodeRanks>> node_ranks;  // by group of the cluster, fewest ranks first; empty where calibrations say the times
  bool uniform = false;                            // BlockSpace::uniform
  bool workers = false;                            // CPU hosts
};
// Those that compute in the job's precision, of these vendors, if any are named. `cluster: {local: ...}` and `{lab: ...}` say how many
// workers there are; otherwise every way to share a host's cores evenly is open, and those that the fixed degrees ask for.
std::vector<Devices> devices_of(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const std::vector<std::string>& vendors);

// All of the space that `parallel:` leaves open on these devices.
BlockSpace space_of(const model::JobSpec& job, const Devices& devices);

}  // namespace tessera::search
