// Internal: times collectives and messages: alone, where they take turns with computing, and beside computing.
#pragma once

#include <vector>

#include "comm/comm.hpp"
#include "model/job.hpp"
#include "profile/profile.hpp"
#include "train/measure.hpp"
#include "train/meter.hpp"
#include "train/timed_block.hpp"

namespace tessera::train {

// What a group of ranks may be among so many.
std::vector<int> group_sizes(int ranks);
// Whether the trainer can cut this block over so many ranks, and the others that it cuts.
bool divides(const model::ModelSpec& model, const model::BlockSpec& block, int tensor_parallel);

// Called by all ranks alike, of which there are two or more. Where `links` has what measure_links says of their hosts, the ranks of a group
// form its ring in the order in which plans let them.
std::vector<profile::CommSample> measure_communication(const model::JobSpec& job, const Meter& meter, comm::Communicator& comm,
                                                       const Weights& weights, const MeasureOptions& options,
                                                       const profile::Profile& links);

}  // namespace tessera::train
