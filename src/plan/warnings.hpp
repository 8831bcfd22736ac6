// Warnings about a plan that does what its user may not want.
#pragma once

#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace tessera::plan {

// Sentences: threads that take turns (crowding_of); replicas with unequal numbers of samples that each normalize by their own, so that the
// plan trains another function than equal shares would.
std::vector<std::string> warnings_of(const Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster);

}  // namespace tessera::plan
