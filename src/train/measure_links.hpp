// Internal: times messages between each two hosts of a run.
#pragma once

#include <string>
#include <vector>

#include "comm/comm.hpp"
#include "profile/profile.hpp"
#include "train/meter.hpp"

namespace tessera::train {

// What the first ranks of each two hosts, of `per_host` consecutive ranks each, take for messages of 16 KiB and 1 MiB: samples of "send" on
// profile::pair_link of the link's name; none of fewer than three hosts. The hosts meet in the rounds of a tournament, in which each stands
// in one pair, so that n hosts take n - 1 rounds (n, of an odd number) of ten messages there and back. Called by all ranks alike; all
// return the same.
std::vector<profile::CommSample> measure_links(const Meter& meter, comm::Communicator& comm, const std::string& link, int per_host);

}  // namespace tessera::train
