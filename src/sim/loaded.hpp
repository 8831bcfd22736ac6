// Internal: costs on accelerators by block, from plan::CostModel: what the closed form of cost::predict counts with, played through.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "cost/cost.hpp"
#include "cost/cost_model.hpp"
#include "sim/costs.hpp"

namespace tessera::sim {

// A pass takes what its blocks do, with the exchanges in them and the cuts between them; an optimizer step also takes what is
// waited for of its blocks' gradients and parameters: what computing does not hide of these comes behind the computing, as its exchange. So
// collectives take no time of their own: how much of them computing hides is in the calibrations, not left to the clock. All messages of
// one micro-batch between two stages take as long as all of them together, and share no links: that they leave at once is in their price.
//
// The arguments must outlive it.
class LoadedCosts final : public Costs {
 public:
  LoadedCosts(const std::vector<program::Program>& programs, const plan::Plan& plan, cost::CostModel& cost_model);

  Compute compute(int program, const program::Instruction& instruction) override;
  Transfer message(int program, const program::Instruction& send) override;
  Transfer collective(int, const program::Instruction&) override { return {}; }
  program::MemoryBudget memory(int program) override;

 private:
  int devices_of(const program::Program& program) const { return devices_[static_cast<std::size_t>(program.stage)]; }
  const cost::BlockLoad& load_of(const program::Program& program, int block);
  Compute pass(const program::Program& program, const program::Instruction& instruction);
  Compute step(const program::Program& program, int bucket);

  const std::vector<program::Program>& programs_;
  const plan::Plan& plan_;
  cost::CostModel& cost_model_;
  std::vector<int> devices_;                                                 // by stage
  std::vector<const plan::Strategy*> strategies_;                            // by block
  std::map<std::tuple<int, program::Op, int, int, int>, Compute> computed_;  // program, kind, blocks, bucket
  std::map<std::tuple<int, program::Op, int>, double> messages_;             // program, kind, block
};

}  // namespace tessera::sim
