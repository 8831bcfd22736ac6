// What a run has sent beside what its plan says.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "comm/comm.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "train/placer.hpp"

namespace tessera::train {

// By dimension (program::dimension_of), sums over all ranks.
using TrafficByDimension = std::map<std::string, comm::Traffic>;

// What all ranks of the communicator have sent so far, on all of them: all of them must call it, when nothing is under way.
TrafficByDimension sent(comm::Communicator& comm);
// What the plan says that `steps` steps send where each rank is on a host of its own.
TrafficByDimension planned(const plan::Plan& plan, const model::ModelSpec& model, std::int64_t steps);
// What the first has beyond the second.
TrafficByDimension difference(TrafficByDimension all, const TrafficByDimension& before);
// {"steps": 7, "dimensions": {"data": {"messages", "collectives", "bytes", "planned": {"messages", "collectives", "bytes"}}, ...}}; without
// `planned` where the plan cannot say it, and with "placement" where samples were placed.
std::string to_json(const TrafficByDimension& sent, const std::optional<TrafficByDimension>& planned, std::int64_t steps,
                    const std::optional<PlacementReport>& placement = {});

}  // namespace tessera::train
