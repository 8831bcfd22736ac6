// Internal: what `parallel:` fixes of a plan, as a part of the space of the search over blocks.
#pragma once

#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "search/devices.hpp"

namespace tessera::search {

// All of the space where nothing is fixed.
BlockSpace space_of(const model::ParallelChoice& parallel);
// Throws invalid_config at the line of `parallel` when what is fixed there cannot divide, with the nearest that can.
void check_given(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Devices& devices);
// As the user wrote it: "tp 8, pp 4, schedule zb-h1".
std::string given_text(const model::ParallelChoice& parallel);

}  // namespace tessera::search
