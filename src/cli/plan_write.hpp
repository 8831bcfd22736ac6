// Internal: plans in the words of other trainers, as `plan --write SYSTEM FILE` asks for them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/job.hpp"
#include "plan/plan.hpp"

namespace tessera::cli {

using Writes = std::vector<std::pair<std::string, std::string>>;  // system and file

// Throws before any plan is known what needs none: no such system, no folder to write to, a model that the system does not have.
void check_writes(const Writes& writes, const model::ModelSpec& model);

// What has been written.
struct Written {
  std::string system;
  std::string file;
  std::string family;  // of the plan; empty: the first
  double slower = 0;   // its step over the first plan's, less 1
};

// For each system the fastest of `plans` (families with their plans, the best one first) that it can express. All texts are made before the
// first is written. Throws what refuses the best plan when none can be expressed.
std::vector<Written> write_for_others(const Writes& writes, const std::vector<std::pair<std::string, const plan::Plan*>>& plans,
                                      const model::JobSpec& job);

nlohmann::ordered_json to_json(const std::vector<Written>& written);
// A line each.
std::string to_text(const std::vector<Written>& written);

}  // namespace tessera::cli
