// Internal to the search over blocks: the ways in which the blocks of a model can run on the ranks of one stage.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "cost/cost_model.hpp"
#include "search/block_search.hpp"

namespace tessera::search {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// The tensor-parallel degree of a block where those that may be cut have this one.
std::int64_t tensor_of(const BlockSpace& space, const model::BlockSpec& block, std::int64_t tensor);

// What all blocks of a plan have in a uniform space, but those that stand whole; 0: each its own.
struct FixedDegrees {
  int tensor = 0;
  int context = 0;
  int zero = 0;
  auto operator<=>(const FixedDegrees&) const = default;
};

// What a stage stands on, and how many micro-batches a step has.
struct StageRanks {
  int devices = 0;  // as CostModel knows them
  int width = 1;
  std::int64_t micro_batches = 1;
  FixedDegrees fixed = {};
  auto operator<=>(const StageRanks&) const = default;
};

// A way to run one block.
struct BlockOption {
  plan::Strategy strategy;
  int layout = 0;      // equal for equal dp, cp and tp
  double forward = 0;  // seconds of a micro-batch
  double backward = 0;
  double once = 0;              // seconds of a step
  double fixed = 0;             // bytes
  double saved = 0;             // bytes of a micro-batch
  double saved_for_weight = 0;  // between the halves of its backward pass
  double workspace = 0;
  double tied_once = 0;  // where the stage does not hold the model's first block, which owns tied parameters
  double tied_fixed = 0;
};

// Those of every block that no other covers under any schedule.
struct StageOptions {
  std::vector<plan::Strategy> layouts;           // dp, cp and tp of each
  std::vector<std::vector<BlockOption>> blocks;  // by index into ModelSpec::repeats
  bool possible = true;                          // every block has one
};
// So many replicas as one domain of the inside link holds, over which ZeRO may shard with copies across; 0: those are all or do not divide.
int sharding_group(const cost::CostModel& cost_model, int devices, const plan::Strategy& strategy);
// The ways in which a block may exchange what it needs of other context-parallel ranks.
std::vector<model::ContextKind> contexts_of(const BlockSpace& space, const model::BlockSpec& block, std::int64_t tensor,
                                            std::int64_t context);
// Whether a block is sequence-parallel under such degrees; no value: the space leaves them out.
std::optional<bool> sequence_parallel_of(const BlockSpace& space, const model::BlockSpec& block, std::int64_t tensor, std::int64_t context);
StageOptions options_of(const BlockProblem& problem, cost::CostModel& cost_model, const StageRanks& ranks);

// Keeps the items that no kept item before them covers: covers(a, b) says whether `a` is as good as `b` in every respect.
template <typename Item, typename Covers>
void drop_covered(std::vector<Item>& items, const Covers& covers) {
  std::vector<Item> kept;
  for (const Item& item : items)
    if (std::none_of(kept.rbegin(), kept.rend(), [&](const Item& other) { return covers(other, item); })) kept.push_back(item);
  items = std::move(kept);
}

}  // namespace tessera::search
