// Whether a plan keeps to the memory of its devices.
#pragma once

#include <vector>

#include "cluster/cluster.hpp"
#include "plan/plan.hpp"

namespace tessera::plan {

// `memory`: peak bytes by rank. Throws resource_exhausted that names the rank which exceeds its limit most, and by how much.
void check_fits(const Plan& plan, const std::vector<Bytes>& memory, const cluster::ClusterSpec& cluster);

}  // namespace tessera::plan
