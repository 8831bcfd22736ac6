// A plan on its devices as the cost model prices it, block by block: what predictions, memory and the simulator go through.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cost/cost_model.hpp"
#include "plan/schedule/schedule.hpp"

namespace tessera::cost {

// What a rank holds.
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

// The plan and the cost model must outlive it. `part` is that of a stage's devices (StageDevices::parts), or kAllParts.
class PricedPlan {
 public:
  PricedPlan(const plan::Plan& plan, CostModel& cost_model);

  const plan::Pipeline& pipeline() const { return pipeline_; }
  // What a stage stands on, as CostModel knows it; a pipeline rank has the number of its first stage.
  int devices(int stage) const { return devices_[stage]; }
  const plan::Strategy& strategy(int block) const { return *strategies_[block]; }
  const BlockLoad& load(int stage, int block, int part = kAllParts) const {
    return cost_model_.block(repeat(block), devices(stage), strategy(block), plan_.samples(), part);
  }
  int repeat(int block) const { return cost_model_.repeat_of()[block]; }
  // Of the block's inputs, where the block before it in the stage is cut otherwise: seconds of one micro-batch and pass.
  double reshard(int stage, int block) const {
    return cost_model_.reshard(repeat(block), devices(stage), strategy(block - 1), strategy(block), plan_.samples());
  }
  // The model's first block owns what others tie.
  bool holds_first_block(int pipeline_rank) const;
  // visit(part, index behind its last rank in the stage)
  template <typename Visit>
  void for_parts(int stage, const Visit& visit) const {
    const std::vector<StageDevices::Part>& parts = cost_model_.parts_of(devices(stage)).parts;
    if (parts.size() == 1) return visit(0, plan_.stages[stage].width());
    int last = 0;
    for (std::size_t part = 0; part < parts.size(); ++part) visit(static_cast<int>(part), last += parts[part].ranks);
  }
  // The part on which a rank of the stage stands.
  int part_of(int stage, int rank) const;
  // On all parts: bytes scaled to the memory of the first.
  RankBytes bytes(int pipeline_rank, int part) const;
  // The terms of a rank's peak by name; zero ones too.
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
