// Plans as people write them by hand: one dp x cp x tp x pp for the whole model on the devices of one group, one way to recompute and
// one ZeRO stage for all blocks. Stages alone on their ranks are of equal depth; where a schedule puts several on a rank they are cut
// evenly in blocks, in layers, or so that all ranks have as much to do, and only the first so many layers of each may be computed again.
#pragma once

#include <optional>
#include <vector>

#include "cost/cost_model.hpp"
#include "search/block_search.hpp"

namespace tessera::search {

struct TemplateSpace {
  int group = 0;
  std::vector<plan::Schedule> schedules = {plan::Schedule::one_f_one_b, plan::Schedule::interleaved};
  std::vector<int> zero = {0, 1};
  bool sharding_groups = false;          // ZeRO may shard over the replicas that one domain holds
  std::optional<Seconds> deadline = {};  // by the problem's clock
};

// The fastest that fits, with its prediction; among equals the first, which is the simplest. Nothing where none divides and fits, or none
// was found in time.
std::optional<plan::Plan> best_template(const BlockProblem& problem, const TemplateSpace& space, cost::CostModel& cost_model);

}  // namespace tessera::search
