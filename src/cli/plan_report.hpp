// A plan as one self-contained web page: blocks x devices, the pipeline's timeline, memory, the step's terms, the runners-up, and
// step time against memory.
#pragma once

#include <string>

#include "cli/plan_input.hpp"
#include "plan/plan.hpp"
#include "search/search.hpp"

namespace tessera::cli {

// `result` is of a search with SearchOptions::front. Simulates the plan for its timeline. The same inputs give the same page. It
// refers to nothing outside itself.
std::string plan_report(const PlanInput& input, const search::SearchResult& result);

}  // namespace tessera::cli
