// Internal to the search over blocks: the options of the blocks of a model on the ranks of one stage.
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

// A block's tensor-parallel degree when the blocks that may be cut have degree `tensor`.
std::int64_t tensor_of(const BlockSpace& space, const model::BlockSpec& block, std::int64_t tensor);

// In a uniform space, the degrees of all blocks of a plan except those that stand whole; 0: each block chooses.
struct FixedDegrees {
  int tensor = 0;
  int context = 0;
  int zero = 0;
  auto operator<=>(const FixedDegrees&) const = default;
};

// The ranks of a stage, and the number of micro-batches of a step.
struct StageRanks {
  int devices = 0;  // an id of the CostModel
  int width = 1;
  std::int64_t micro_batches = 1;
  FixedDegrees fixed = {};
  auto operator<=>(const StageRanks&) const = default;
};

// A way to run one block.
struct BlockOption {
  plan::Strategy strategy;
  int layout = 0;      // index into StageOptions::layouts: dp, cp and tp
  double forward = 0;  // seconds of a micro-batch
  double backward = 0;
  double once = 0;              // seconds of a step
  double fixed = 0;             // bytes
  double saved = 0;             // bytes of a micro-batch
  double saved_for_weight = 0;  // of them, what stays between the halves of the backward pass
  double workspace = 0;
  double tied_once = 0;  // added where the stage does not hold the model's first block, which owns tied parameters
  double tied_fixed = 0;
};

// The options of every block that no other option dominates under any schedule.
struct StageOptions {
  std::vector<plan::Strategy> layouts;           // dp, cp and tp of each
  std::vector<std::vector<BlockOption>> blocks;  // by index into ModelSpec::repeats
  bool possible = true;                          // every block has one
  std::int64_t priced = 0;                       // strategies of blocks that were priced for it, on each part of the devices
};
// The number of replicas in one domain of the inside link, over which ZeRO may shard with copies across domains; 0 if those are all
// replicas, or the numbers do not divide.
int sharding_group(const cost::CostModel& cost_model, int devices, const plan::Strategy& strategy);
// The kinds of context parallelism that a block may use at these degrees.
std::vector<model::ContextKind> contexts_of(const BlockSpace& space, const model::BlockSpec& block, std::int64_t tensor,
                                            std::int64_t context);
// Whether a block is sequence-parallel at these degrees; unset: the space leaves the degrees out.
std::optional<bool> sequence_parallel_of(const BlockSpace& space, const model::BlockSpec& block, std::int64_t tensor, std::int64_t context);
StageOptions options_of(const BlockProblem& problem, cost::CostModel& cost_model, const StageRanks& ranks);

// Removes every item that an earlier kept item dominates: covers(a, b) says whether `a` is as good as `b` in every respect.
template <typename Item, typename Covers>
void drop_covered(std::vector<Item>& items, const Covers& covers) {
  std::vector<Item> kept;
  for (const Item& item : items)
    if (std::none_of(kept.rbegin(), kept.rend(), [&](const Item& other) { return covers(other, item); })) kept.push_back(item);
  items = std::move(kept);
}

}  // namespace tessera::search
