// Workers that have to take turns on the cores of their host.
#pragma once

#include <string>

#include "cluster/cluster.hpp"
#include "plan/plan.hpp"

namespace tessera::plan {

// A sentence about the host whose workers have the most threads for each of its cores, where that is more than one; empty where none is.
std::string crowding_of(const Plan& plan, const cluster::ClusterSpec& cluster);

}  // namespace tessera::plan
