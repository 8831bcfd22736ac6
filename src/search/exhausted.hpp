// Internal: what to say when no plan divides or none fits the memory.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "search/space.hpp"

namespace tessera::search {

// By how much the fullest device (or, for CPU workers, host) is over its limit; zero when all fit.
Bytes shortfall(const plan::Plan& plan, const std::vector<Bytes>& memory, const cluster::ClusterSpec& cluster);

// The fullest device (or, for CPU workers, host), by share of its limit.
struct Usage {
  Bytes memory;
  Bytes limit;
  double share() const { return memory / limit; }
};
Usage fullest(const plan::Plan& plan, const std::vector<Bytes>& memory, const cluster::ClusterSpec& cluster);

// The largest parts of the fullest rank: "optimizer state 13.4 GiB, weights 4.5 GiB".
std::string largest_parts(const plan::Plan& plan, const std::vector<Bytes>& memory, cost::CostModel& cost_model);
// In whole units, so that what is printed is enough.
std::string rounded_up(double bytes);

Error nothing_divides(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const std::vector<WorkerLayout>& layouts);
// `smallest`: the plan that lacks the least.
Error nothing_fits(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const plan::Plan& smallest,
                   const profile::Profile& profile);

}  // namespace tessera::search
