// What a plan does that its user may not want.
#pragma once

#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace tessera::plan {

// A sentence each: threads that take turns (crowding_of), and replicas that take unequal numbers of samples and each normalize by their
// own, so that the plan trains another function than equal shares do.
std::vector<std::string> warnings_of(const Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster);

}  // namespace tessera::plan
