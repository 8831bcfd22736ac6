// Plans as people write them by hand: one dp x cp x tp x pp for the whole model on the devices of one group, with one kind of recomputation
// and one ZeRO stage for all blocks. With one stage a rank, stages are equally deep. With several, the blocks are cut evenly by blocks, by
// layers, or so that all ranks have equal work, and recomputation may cover only the first layers of each stage.
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
  bool sharding_groups = false;          // ZeRO may shard over the replicas within one domain
  std::optional<Seconds> deadline = {};  // by BlockProblem::clock
};

// The fastest template that fits, with its prediction; of equally fast ones the simplest, which comes first. Unset if none divides and
// fits, or none was found in time.
std::optional<plan::Plan> best_template(const BlockProblem& problem, const TemplateSpace& space, cost::CostModel& cost_model);

}  // namespace tessera::search
