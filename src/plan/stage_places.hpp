// Internal. How the ranks of a plan stand on nodes, links and domains (the devices that an inside link joins).
#pragma once

#include <vector>

#include "cluster/cluster.hpp"
#include "plan/plan.hpp"

namespace tessera::plan {

// What a rank computes with: the threads of a CPU worker, and how many workers share its host, this one included; 1 each of an accelerator.
struct Worker {
  int group = 0;
  int threads = 1;
  int neighbours = 1;
  auto operator<=>(const Worker&) const = default;
};
std::vector<Worker> workers_of(const Plan& plan, const cluster::ClusterSpec& cluster);  // by rank

// The slowest link among these ranks.
const cluster::Link& link_among(const Plan& plan, const cluster::ClusterSpec& cluster, const std::vector<int>& ranks);

// Of a stage whose ranks are all of one group: over how many whole domains consecutive ranks are dealt, one to each in turn; 0 where they
// are not.
int dealt_over(const Plan& plan, const Stage& stage, const cluster::ResourceGroup& group);

// The same number of devices of each of several consecutive domains, which other stages share: that number, and the first of them;
// 0 where the stage's devices stand side by side.
struct DomainShare {
  int devices = 0;
  int first = 0;
};
DomainShare domain_share(const Plan& plan, const Stage& stage, const cluster::ResourceGroup& group);

// Whether a strategy cuts blocks among ranks that are dealt so.
bool parts_across_nodes(const Plan& plan, const Stage& stage, const Strategy& strategy, const cluster::ClusterSpec& cluster);

}  // namespace tessera::plan
