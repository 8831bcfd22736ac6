// Internal: how full devices are, the front of step time against memory, and the error when nothing fits.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cost/cost_model.hpp"
#include "search/devices.hpp"
#include "search/search.hpp"

namespace tessera::search {

// The device (for CPU workers, the host) closest to its memory limit, of a plan with a prediction.
struct Usage {
  Bytes memory;
  Bytes limit;
  double share() const { return memory / limit; }
};
Usage fullest(const plan::Plan& plan, const cluster::ClusterSpec& cluster);
// `plan` has a prediction.
FrontPoint front_point(const plan::Plan& plan, const std::string& family, const cluster::ClusterSpec& cluster);
// The points that no other point beats in both time and share of the memory limit, fastest first, at least 1 % of memory apart.
std::vector<FrontPoint> front_of(std::vector<FrontPoint> points);

// The error when no plan fits. `smallest` (with a prediction) needs `factor` times the memory that there is; unset and 0 when no plan is
// known. `ideas`: what would make a plan fit, besides more memory.
Error nothing_fits(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Devices& devices, double factor,
                   const std::optional<plan::Plan>& smallest, cost::CostModel& cost_model, std::vector<std::string> ideas);

// The job with sequences of so many tokens; unset if it cannot have them.
std::optional<model::JobSpec> with_sequence(const model::JobSpec& job, std::int64_t tokens);

}  // namespace tessera::search
