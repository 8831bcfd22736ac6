// Internal: how full devices are, the front of step time against memory, and what to say when nothing fits.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cost/cost_model.hpp"
#include "search/devices.hpp"
#include "search/search.hpp"

namespace tessera::search {

// The fullest device (or, of CPU workers, host) of a plan with a prediction, by share of its limit.
struct Usage {
  Bytes memory;
  Bytes limit;
  double share() const { return memory / limit; }
};
Usage fullest(const plan::Plan& plan, const cluster::ClusterSpec& cluster);
// `plan` has a prediction.
FrontPoint front_point(const plan::Plan& plan, const std::string& family, const cluster::ClusterSpec& cluster);
// Those of which none is both faster and smaller than another, fastest first, at least 1 % of memory apart; smaller is by share of the
// limit.
std::vector<FrontPoint> front_of(std::vector<FrontPoint> points);

// `smallest`, a plan with a prediction, needs `factor` times the memory that there is; nothing and 0 where none is known. `ideas`: what
// would fit, beside more memory.
Error nothing_fits(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Devices& devices, double factor,
                   const std::optional<plan::Plan>& smallest, cost::CostModel& cost_model, std::vector<std::string> ideas);

// The job with sequences of so many tokens; nothing where it cannot have them.
std::optional<model::JobSpec> with_sequence(const model::JobSpec& job, std::int64_t tokens);

}  // namespace tessera::search
