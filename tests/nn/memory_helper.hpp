// What a step holds, as the allocator sees it and as the planner says.
#pragma once

#include <c10/core/Allocator.h>
#include <algorithm>
#include <cstdint>

#include "model/model.hpp"

namespace tessera::nn::test {

// Bytes of tensors that this thread holds, and the most it ever held.
class MemoryMeter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t change, std::size_t, std::size_t, c10::Device) override {
    held_ += change;
    peak_ = std::max(peak_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t held() const { return held_; }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t held_ = 0;
  std::int64_t peak_ = 0;
};

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
