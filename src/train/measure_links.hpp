// Internal: times messages between each two hosts of a run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/comm.hpp"
#include "plan/plan.hpp"
#include "profile/profile.hpp"
#include "train/meter.hpp"

namespace tessera::train {

// By host that takes part: the rank that measures for it.
using RankOfHost = std::map<int, int>;

// Where so many ranks stand on hosts of `per_host` consecutive ranks each: the first rank of each.
RankOfHost first_ranks(int ranks, int per_host);
// The first rank of each node that a plan uses; empty where its ranks stand on several groups of the cluster.
RankOfHost first_ranks(const plan::Plan& plan);

// What each two hosts take for messages of 16 KiB and 1 MiB: samples of "send" on profile::pair_link of the link's name; none of fewer than
// three hosts. The hosts meet in the rounds of a tournament, in which each stands in one pair, so that n hosts take n - 1 rounds (n, of an
// odd number) of ten messages there and back, fewer where links are so slow that these would take seconds. Called by all ranks alike; all
// return the same.
std::vector<profile::CommSample> measure_links(const Meter& meter, comm::Communicator& comm, const std::string& link,
                                               const RankOfHost& hosts);

}  // namespace tessera::train
