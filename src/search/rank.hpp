// The last word on a search: its best plans against the clock, and against what was measured.
#pragma once

#include "search/search.hpp"
#include "sim/sim.hpp"

namespace tessera::search {

// Simulates the best plan, the runners-up and SearchResult::close, as far as the cost model gives them a chance; the one with the
// shortest simulated step becomes the best (`best_family` with it), the one that it replaces a runner-up. Returns that step. Once `stop` is
// set, no further plan is simulated beside the best.
Seconds rank_by_simulation(SearchResult& result, const model::ModelSpec& model, const model::TrainSpec& train,
                           const cluster::ClusterSpec& cluster, const profile::Profile& profile, const std::atomic<bool>* stop = nullptr);

// Call after rank_by_simulation. Where the best plan is extrapolated by its own choice (cost/extrapolation.hpp) and no runner-up stays
// within what was measured, the fastest of SearchResult::close that does moves among the runners-up, which stay sorted.
void keep_within_measured(SearchResult& result, const model::ModelSpec& model, const cluster::ClusterSpec& cluster);

}  // namespace tessera::search
