// Internal: what the report of a plan is put together from.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/plan_input.hpp"
#include "plan/plan.hpp"

namespace tessera::cli {

// Consecutive ranks on the same stages, which the page shows as one.
struct RankFold {
  std::vector<int> ranks;
  std::string label;  // "rank 3", "ranks 0 to 7"
  std::string place;  // "a100, node 0"
};
// At most `most` folds where the plan allows it: each rank alone, or those of a node, or those of a stage.
std::vector<RankFold> fold_ranks(const plan::Plan& plan, const cluster::ClusterSpec& cluster, std::size_t most);
// By rank, the stages that it holds.
std::vector<std::vector<int>> stages_of_ranks(const plan::Plan& plan);

// The spans of the ranks that the page shows, as the simulator ran them. With many micro-batches the middle of the step, where the pipeline
// repeats itself, is left out; spans too short to be seen are joined.
nlohmann::ordered_json timeline_of(const PlanInput& input, const plan::Plan& plan);

// The page around the data: `data` as JSON, `text` as plain text for where no script runs.
std::string plan_report_page(const std::string& title, const std::string& text, const nlohmann::ordered_json& data);

}  // namespace tessera::cli
