// Plans as people write them by hand: one dp x cp x tp x pp for the whole model, stages of equal depth on the devices of one group,
// one way to recompute and one ZeRO stage for all blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cost/cost_model.hpp"
#include "search/block_search.hpp"

namespace tessera::search {

struct TemplateSpace {
  int group = 0;
  std::vector<plan::Schedule> schedules = {plan::Schedule::one_f_one_b, plan::Schedule::interleaved};
  std::vector<int> zero = {0, 1};
  int most_tensor = 1 << 30;
  int most_context = 1;
  int most_stages = 1 << 30;
  std::optional<Seconds> deadline = {};  // by the problem's clock
  bool needed = true;                    // the deadline does not end it before it has any plan
};

struct TemplateAnswer {
  std::optional<plan::Plan> best;      // the fastest that fits; among equals the first, which is the simplest
  std::optional<plan::Plan> smallest;  // where none fits
  std::int64_t considered = 0;
};
// Prices every template that divides.
TemplateAnswer best_template(const BlockProblem& problem, const TemplateSpace& space, cost::CostModel& cost_model);

}  // namespace tessera::search
