// The cost model's front door: bytes and utilization of a whole plan. Its seconds are for the simulator to say (sim/sim.hpp).
#pragma once

#include <vector>

#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"
#include "profile/profile.hpp"

namespace tessera::cost {

// Whether times of some of the plan's devices are from a profile, or a roofline, and not from calibrations: there is then no closed form of
// the step, and exchanges are for the simulator to play through (CostModel::plays_exchanges).
bool plays_exchanges(const plan::Plan& plan, const cluster::ClusterSpec& cluster);

// Peak resident bytes by rank, everything counted in.
std::vector<Bytes> memory_of(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train,
                             const cluster::ClusterSpec& cluster, const profile::Profile& profile);
// What each rank may use: most of its device's memory, or a CPU worker's even share of its host's.
std::vector<Bytes> memory_limits(const plan::Plan& plan, const cluster::ClusterSpec& cluster);
// What is there for a whole rank (accelerator) or for all workers of a host together (CPU).
Bytes memory_limit(const cluster::Device& device);
// The rank that takes the largest share of its limit, the first of equals. `memory`: peak bytes by rank, at least one.
struct FullestRank {
  int rank = 0;
  double share = 0;  // more than 1 where it does not fit
};
FullestRank fullest_rank(const plan::Plan& plan, const std::vector<Bytes>& memory, const cluster::ClusterSpec& cluster);
// `memory`: peak bytes by rank. Throws resource_exhausted that names the rank which exceeds its limit most, and by how much.
void check_fits(const plan::Plan& plan, const std::vector<Bytes>& memory, const cluster::ClusterSpec& cluster);

// Model FLOPs utilization (Chowdhery et al. 2022, appendix B) of a step so long: the FLOPs that the model needs, without what is computed
// again, over the peak of all devices of the plan in its precision. 0..1
double utilization(const plan::Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster, Seconds step);

}  // namespace tessera::cost
