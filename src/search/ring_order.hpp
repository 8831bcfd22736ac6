// Internal: the order of a plan's replicas by the links that were measured between its hosts.
#pragma once

#include "plan/plan.hpp"
#include "profile/profile.hpp"

namespace tessera::search {

// Orders the replicas of the plan's stages such that the rings of those that exchange gradients avoid slow links (profile::shortest_ring).
// Each rank keeps its place, its samples and what it is predicted to hold. The plan stays as it is where the profile lacks a pair of its
// hosts, where different ranks hold its stages, since these would then send to each other over other links, and where a stage has several
// layouts, experts that are spread or hybrid sharding, for which the order says who shares what.
void order_by_links(plan::Plan& plan, const cluster::ClusterSpec& cluster, const profile::Profile& profile);

}  // namespace tessera::search
