// Internal: how full devices are, and what to say when nothing fits them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cost/cost_model.hpp"
#include "search/devices.hpp"

namespace tessera::search {

// The fullest device (or, of CPU workers, host) of a plan with a prediction, by share of its limit.
struct Usage {
  Bytes memory;
  Bytes limit;
  double share() const { return memory / limit; }
};
Usage fullest(const plan::Plan& plan, const cluster::ClusterSpec& cluster);

// `smallest`, a plan with a prediction, needs `factor` times the memory that there is; nothing and 0 where none is known. `ideas`: what
// would fit, beside more memory.
Error nothing_fits(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Devices& devices, double factor,
                   const std::optional<plan::Plan>& smallest, cost::CostModel& cost_model, std::vector<std::string> ideas);

// The job with sequences of so many tokens; nothing where it cannot have them.
std::optional<model::JobSpec> with_sequence(const model::JobSpec& job, std::int64_t tokens);

}  // namespace tessera::search
