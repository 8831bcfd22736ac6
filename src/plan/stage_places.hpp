// How a plan's ranks are placed on nodes, links and domains (the devices that an inside link joins).
#pragma once

#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "plan/plan.hpp"

namespace tessera::plan {

// The processors of a rank. Where ranks do not share their host (Device::shares_host), `threads` and `neighbours` are 1.
struct Worker {
  int group = 0;       // index into ClusterSpec::groups
  int threads = 1;     // of this rank
  int neighbours = 1;  // ranks on its host, this one included
  double speed = 1;    // of its host (ResourceGroup::speeds)
  auto operator<=>(const Worker&) const = default;
};
std::vector<Worker> workers_of(const Plan& plan, const cluster::ClusterSpec& cluster);  // by rank
// If workers have more threads than their host has cores, so that threads take turns: a sentence about the host with the most threads a
// core. Otherwise empty.
std::string crowding_of(const Plan& plan, const cluster::ClusterSpec& cluster);

// The slowest link between the first of these ranks and the others; for one rank, the inside link of its group.
const cluster::Link& link_among(const Plan& plan, const cluster::ClusterSpec& cluster, const std::vector<int>& ranks);

// The number of domains that a stage's ranks are dealt over: consecutive ranks are on consecutive domains, one on each in turn, until all
// devices of these domains are taken. With 2 domains of 4 devices, ranks 0, 2, 4 and 6 are on the first and 1, 3, 5 and 7 on the second, so
// that with tp 2, replicas and not the tensor shards of a block share a domain. 0: the ranks are not dealt so, or share their host. All
// ranks of the stage must be of `group`.
int dealt_over(const Plan& plan, const Stage& stage, const cluster::ResourceGroup& group);

// The part of each domain that a stage has when it shares domains with other stages: `devices` devices on each of several consecutive
// domains. 0: it shares none, its devices are side by side. All ranks of the stage must be of `group`.
struct DomainShare {
  int devices = 0;
  int first = 0;  // the first of these domains
};
DomainShare domain_share(const Plan& plan, const Stage& stage, const cluster::ResourceGroup& group);

// For a stage whose devices are side by side but which begins within a domain and ends in another: the largest n such that n consecutive
// ranks are always in one domain. A stage of 8 that begins at the seventh device of nodes of 8: 2. 0: the stage begins with a domain, or
// lies in one, or the domain has many nodes, some of which are left out so that stages lie whole in it. All ranks of the stage must be of
// `group`.
int together_everywhere(const Plan& plan, const Stage& stage, const cluster::ResourceGroup& group);

// Whether a strategy cuts blocks (tp × cp > 1) among ranks that are dealt over several domains.
bool parts_across_nodes(const Plan& plan, const Stage& stage, const Strategy& strategy, const cluster::ClusterSpec& cluster);

}  // namespace tessera::plan
