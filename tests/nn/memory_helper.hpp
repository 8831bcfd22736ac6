// What a step holds, as the allocator sees it and as the planner says.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model/model.hpp"
#include "nn/memory_meter.hpp"  // IWYU pragma: export

namespace tessera::nn::test {

// The planner's formula for one micro-batch: everything kept, and the largest workspace on top.
inline std::int64_t expected_peak(const model::ModelSpec& spec, const model::BlockShard& shard) {
  std::int64_t saved = 0;
  std::int64_t workspace = 0;
  std::int64_t input = 0;
  for (const model::BlockInstance& instance : spec.blocks()) {
    const model::BlockCost cost = model::cost_of(*instance.spec, shard);
    saved += cost.saved.value;
    workspace = std::max({workspace, cost.forward_workspace.value + cost.output.value, cost.backward_workspace.value + input});
    input = cost.output.value;
  }
  return saved + workspace;
}

}  // namespace tessera::nn::test
