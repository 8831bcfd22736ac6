// Compares the plan of a what-if with the plan of the unchanged job.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/plan_input.hpp"
#include "plan/plan.hpp"
#include "search/search.hpp"

namespace tessera::cli {

// The best plan of the same command without its --set, or why there is none.
struct Baseline {
  PlanInput input;
  std::optional<search::SearchResult> result;
  std::string refusal;  // why no plan fits; empty with a result
};
// Throws invalid_config when the source has no --set, and what reading throws.
Baseline plan_baseline(const PlanSource& source, search::SearchOptions options);

// Both steps and their terms, as a table for a terminal of so many columns.
std::string comparison(const PlanInput& input, const search::SearchResult& result, const Baseline& baseline, int columns);
// {"step_s", "family", "workers"}, or {"error"}.
nlohmann::ordered_json to_json(const Baseline& baseline);

}  // namespace tessera::cli
