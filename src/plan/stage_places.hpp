// Internal. How the ranks of a stage, all of one group, stand on its domains (the devices that an inside link joins).
#pragma once

#include "cluster/cluster.hpp"
#include "plan/plan.hpp"

namespace tessera::plan {

// Over how many whole domains consecutive ranks are dealt, one to each in turn; 0 where they are not.
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
