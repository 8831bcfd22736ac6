// Bytes and utilization of a whole plan; sim/sim.hpp has its seconds.
#pragma once

#include <vector>

#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"
#include "profile/profile.hpp"

namespace tessera::cost {

// Whether the times of some of the plan's devices come from a profile or a roofline rather than calibrations. The step then has no closed
// form, and the simulator plays exchanges (CostModel::plays_exchanges).
bool plays_exchanges(const plan::Plan& plan, const cluster::ClusterSpec& cluster);

// Peak resident bytes by rank, with everything that a process holds.
std::vector<Bytes> memory_of(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train,
                             const cluster::ClusterSpec& cluster, const profile::Profile& profile);
// The bytes that each rank may use: most of its device's memory, or a CPU worker's even share of its host's.
std::vector<Bytes> memory_limits(const plan::Plan& plan, const cluster::ClusterSpec& cluster);
// The bytes that one rank (accelerator) or all workers of a host together (CPU) may use.
Bytes memory_limit(const cluster::Device& device);
// The rank closest to its memory limit, the first of equals. `memory`: peak bytes by rank, not empty.
struct FullestRank {
  int rank = 0;
  double share = 0;  // more than 1 where it does not fit
};
FullestRank fullest_rank(const plan::Plan& plan, const std::vector<Bytes>& memory, const cluster::ClusterSpec& cluster);
// `memory`: peak bytes by rank. Throws resource_exhausted that names the rank which exceeds its limit most, and by how much.
void check_fits(const plan::Plan& plan, const std::vector<Bytes>& memory, const cluster::ClusterSpec& cluster);

// Model FLOPs utilization, 0..1 (Chowdhery et al. 2022, appendix B): the FLOPs that the model needs for a step, without recomputation, over
// what all devices of the plan could do in `step` at their peak in the plan's precision.
double utilization(const plan::Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster, Seconds step);

}  // namespace tessera::cost
