// Plans as people write them by hand: one dp x cp x tp x pp for the whole model, stages of equal depth on the devices of one group,
// one way to recompute and one ZeRO stage for all blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/block_search.hpp"
#include "plan/loads.hpp"

namespace tessera::plan {

struct TemplateSpace {
  int group = 0;
  std::vector<Schedule> schedules = {Schedule::one_f_one_b, Schedule::interleaved};
  std::vector<int> zero = {0, 1};
  int most_tensor = 1 << 30;
  int most_context = 1;
  int most_stages = 1 << 30;
};

struct TemplateAnswer {
  std::optional<Plan> best;      // the fastest that fits; among equals the first, which is the simplest
  std::optional<Plan> smallest;  // where none fits
  std::int64_t considered = 0;
};
// Prices every template that divides.
TemplateAnswer best_template(const BlockProblem& problem, const TemplateSpace& space, Loads& loads);

}  // namespace tessera::plan
