// Internal: costs of a plan's instructions from the cost model.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "cost/priced_plan.hpp"
#include "sim/costs.hpp"
#include "sim/shared_links.hpp"

namespace tessera::sim {

// Where exchanges are for the clock to play through (cost::CostModel::plays_exchanges), passes compute and then reduce between
// tensor-parallel peers, an optimizer step takes what its bucket does, and messages and collectives share links. Elsewhere a pass takes
// what its blocks do, with the exchanges in them and the cuts between them; an optimizer step also takes what is waited for of its
// blocks' gradients and parameters: what computing does not hide of these comes behind the computing, as its exchange. So
// collectives take no time of their own there: how much of them computing hides is in the calibrations, not left to the clock. All
// messages of one micro-batch between two such stages take as long as all of them together, and share no links: that they leave at once is
// in their price.
//
// The arguments must outlive it.
class ModelCosts final : public Costs {
 public:
  ModelCosts(const std::vector<program::Program>& programs, const Fold& fold, const plan::Plan& plan, cost::CostModel& cost_model);

  Compute compute(int program, const program::Instruction& instruction) override;
  Transfer message(int program, const program::Instruction& send) override;
  Transfer collective(int program, const program::Instruction& instruction) override;
  program::MemoryBudget memory(int program) override;

 private:
  bool plays(int stage) const { return cost_model_.plays_exchanges(priced_.devices(stage)); }
  const cluster::Link& link_among(const std::vector<int>& ranks) const { return plan::link_among(plan_, cost_model_.cluster(), ranks); }
  // Of its stage's devices: where exchanges are played through its own, or else all, as the slowest decides.
  int part_of(const program::Program& program) const;
  Compute pass(int program, const program::Instruction& instruction);
  Compute played_step(const program::Program& program, int bucket) const;
  Compute step(const program::Program& program, int bucket) const;

  const std::vector<program::Program>& programs_;
  const Fold& fold_;
  const plan::Plan& plan_;
  cost::CostModel& cost_model_;
  cost::PricedPlan priced_;
  SharedLinks links_;
  std::map<std::tuple<int, program::Op, int, int, int>, Compute> computed_;  // program, kind, blocks, bucket
  std::map<std::tuple<int, program::Op, int>, double> messages_;             // program, kind, block
};

}  // namespace tessera::sim
