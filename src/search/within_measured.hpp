// How far a search's plans lie from measured steps (cost/extrapolation.hpp), for people and for the choice among them.
#pragma once

#include <string>

#include "search/search.hpp"

namespace tessera::search {

// "within what was measured", or on devices without measured steps "within what was measured elsewhere".
std::string within_text(const plan::Plan& plan, const cluster::ClusterSpec& cluster);

// Call after rank_by_simulation. Where the best plan is extrapolated by its own choice and no runner-up stays within what was measured,
// the fastest of SearchResult::close that does moves among the runners-up, which stay sorted.
void keep_within_measured(SearchResult& result, const model::ModelSpec& model, const cluster::ClusterSpec& cluster);

// What of the best plan is extrapolated, and how far: one line for each term, with its share of the step where the step has a part for it;
// then the runner-up that stays within what was measured. Empty where no calibration prices the plan.
std::string extrapolation_text(const SearchResult& result, const model::ModelSpec& model, const cluster::ClusterSpec& cluster,
                               int columns = 0);

}  // namespace tessera::search
