// Internal: what links between hosts that are no longer as a profile measured them make of the times of plans.
#pragma once

#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "profile/host_links.hpp"
#include "profile/profile.hpp"

namespace tessera::train {

// How many times as long as a profile says exchanges over a network take. A collective among hosts is a ring, every step of which waits for
// its slowest hop: so it takes as many times as long as that hop does beside the slowest hop of the ring that the profile was measured in.
// One in which each rank sends to all others, of experts or parts of sequences, waits for the slowest pair.
// What of a measured exchange is no transfer is taken to grow with it, which overstates slow links.
struct Drift {
  double collectives = 1;
  double messages = 1;  // between pipeline stages and parts of sequences: by the slowest pair of hosts that sends one
};

// Seconds of the hop of 1 MiB that the profile's exchanges over the network of these hosts stand for: the slowest one of the best ring of
// all of them, or where their pairs were not measured that of a message on the network.
double measured_hop(const profile::Profile& profile, const cluster::ResourceGroup& hosts);

// The drift of what the plan's ranks exchange from host to host, in the order of their groups; `hop` is from measured_hop. Exchanges with
// groups of the cluster other than `group` do not count.
Drift drift_of(const plan::Plan& plan, const model::ModelSpec& model, const profile::HostLinks& links, int group, double hop);
// The drift of a plan whose ring is the best one over all hosts.
Drift least_drift(const profile::HostLinks& links, double hop);

// The profile and the cluster in which what goes over the network of this group takes that many times as long.
void apply(const Drift& drift, int group, profile::Profile& profile, cluster::ClusterSpec& cluster);

// Puts what was measured of the links between two hosts each into the profile, in place of what it says of the same link, and returns what
// has changed in words: "0.20 Gbit/s between hosts 0 and 1 (2.40 before), the others as before". Links that are equal measure unequal: one
// that takes less than a quarter longer or shorter than it is known to stays as it is known.
std::string take_links(const std::vector<profile::CommSample>& links, const cluster::ResourceGroup& hosts, profile::Profile& profile);

}  // namespace tessera::train
