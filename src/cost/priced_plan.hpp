// A plan with the cost model's prices, block by block: predictions, memory and the simulator read it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cost/cost_model.hpp"
#include "plan/schedule/schedule.hpp"

namespace tessera::cost {

// The bytes that a rank holds.
struct RankBytes {
  Bytes process;  // before it holds a tensor
  Bytes weights;
  Bytes gradients;
  Bytes optimizer_state;
  Bytes tied;  // weights, gradients and states of parameters whose owner another rank holds
  Bytes workspace;
  Bytes buffers;                              // of messages, reductions and samples
  std::vector<plan::ChunkBytes> activations;  // of one micro-batch, by chunk
  Bytes fixed() const { return process + weights + gradients + optimizer_state + tied + buffers; }
};

// The plan and the cost model must outlive it. `part`: index into StageDevices::parts of a stage's devices, or kAllParts.
class PricedPlan {
 public:
  PricedPlan(const plan::Plan& plan, CostModel& cost_model);

  const plan::Pipeline& pipeline() const { return pipeline_; }
  // A stage's devices, as an id of the CostModel. Here a pipeline rank goes by the number of its first stage.
  int devices(int stage) const { return devices_[stage]; }
  const plan::Strategy& strategy(int block) const { return *strategies_[block]; }
  const BlockLoad& load(int stage, int block, int part = kAllParts) const {
    return cost_model_.block(repeat(block), devices(stage), strategy(block), plan_.samples(), part);
  }
  int repeat(int block) const { return cost_model_.repeat_of()[block]; }
  // Seconds, per micro-batch and pass, of resharding the block's inputs; the block before it must be in the same stage.
  double reshard(int stage, int block) const {
    return cost_model_.reshard(repeat(block), devices(stage), strategy(block - 1), strategy(block), plan_.samples());
  }
  // Whether a pipeline rank holds the model's first block, which owns the tied parameters.
  bool holds_first_block(int pipeline_rank) const;
  // Calls visit(part, end) for each part of a stage; `end` is one past the index of the part's last rank in the stage.
  template <typename Visit>
  void for_parts(int stage, const Visit& visit) const {
    const std::vector<StageDevices::Part>& parts = cost_model_.parts_of(devices(stage)).parts;
    if (parts.size() == 1) return visit(0, plan_.stages[stage].width());
    int last = 0;
    for (std::size_t part = 0; part < parts.size(); ++part) visit(static_cast<int>(part), last += parts[part].ranks);
  }
  // The part on which a rank of the stage stands.
  int part_of(int stage, int rank) const;
  // With kAllParts, bytes are scaled to the capacity of part 0.
  RankBytes bytes(int pipeline_rank, int part) const;
  // The terms of a rank's peak, by name, zeros included.
  std::vector<std::pair<std::string, Bytes>> terms(int pipeline_rank, int part) const;
  // Peak bytes by rank: the sum of its terms.
  std::vector<Bytes> memory() const;

 private:
  const plan::Plan& plan_;
  CostModel& cost_model_;
  const plan::Pipeline pipeline_;
  std::vector<int> devices_;                       // by stage
  std::vector<const plan::Strategy*> strategies_;  // by block
};

}  // namespace tessera::cost
