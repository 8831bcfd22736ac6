// Ranks a search's best plans by simulation and by how far they go beyond what was measured.
#pragma once

#include "search/search.hpp"
#include "sim/sim.hpp"

namespace tessera::search {

// Simulates the best plan, and those of the runners-up and of SearchResult::close that the cost model gives a chance. The plan with the
// shortest simulated step becomes the best (with its `best_family`), and the plan that it replaces becomes a runner-up. Returns that step.
// Once `stop` is set, only the best plan is simulated.
Seconds rank_by_simulation(SearchResult& result, const model::ModelSpec& model, const model::TrainSpec& train,
                           const cluster::ClusterSpec& cluster, const profile::Profile& profile, const std::atomic<bool>* stop = nullptr);

// Call after rank_by_simulation. If the best plan is extrapolated by its own choice (cost/extrapolation.hpp) and no runner-up stays within
// what was measured, moves the fastest plan of SearchResult::close that does to the runners-up, which stay sorted.
void keep_within_measured(SearchResult& result, const model::ModelSpec& model, const cluster::ClusterSpec& cluster);

}  // namespace tessera::search
