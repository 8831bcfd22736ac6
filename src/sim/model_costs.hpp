// Internal: the costs of a plan's instructions, from the cost model.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "cost/priced_plan.hpp"
#include "sim/engine.hpp"
#include "sim/shared_links.hpp"

namespace tessera::sim {

// There are two ways, depending on the devices of a stage:
//   - The simulator plays exchanges (cost::CostModel::plays_exchanges). A pass computes, then exchanges with its tensor-parallel peers and
//     gathers what is resharded between its blocks; an optimizer step takes the time of its bucket; messages and collectives take time of
//     their own and share links.
//   - Calibrations say what is exposed. A pass takes the time of its blocks, including their exposed communication and that of resharding
//     between them. An optimizer step ends with the exposed communication of its blocks' gradients and parameters, so collectives take no
//     time of their own. The messages of one micro-batch between two stages leave at once and share no links: each takes the time of all of
//     them.
//
// Not thread-safe. The arguments must outlive it.
class ModelCosts final : public Costs {
 public:
  ModelCosts(const std::vector<program::Program>& programs, const Fold& fold, const plan::Plan& plan, cost::CostModel& cost_model);

  Compute compute(int program, const program::Instruction& instruction) override;
  Transfer message(int program, const program::Instruction& send) override;
  Transfer collective(int program, const program::Instruction& instruction) override;
  Transfer rows(int program, const program::Instruction& instruction) override;
  program::MemoryBudget memory(int program) override;

 private:
  bool plays(int stage) const { return cost_model_.plays_exchanges(priced_.devices(stage)); }
  const cluster::Link& link_among(const std::vector<int>& ranks) const { return plan::link_among(plan_, cost_model_.cluster(), ranks); }
  // The part of its stage's devices that says the times of a program: its rank's own where the simulator plays exchanges; otherwise all
  // parts, of which the slowest decides.
  int part_of(const program::Program& program) const {
    return plays(program.stage) ? priced_.part_of(program.stage, program.rank) : cost::kAllParts;
  }
  const cluster::ResourceGroup& group_of(int rank) const { return cost_model_.cluster().groups[plan_.ranks[rank].group]; }
  double speed_of(int rank) const { return group_of(rank).speed_of(plan_.ranks[rank].node); }  // of its host
  bool on_one_host(const plan::RankPlace& a, const plan::RankPlace& b) const { return a.group == b.group && a.node == b.node; }
  int server_threads(std::optional<int> rank = {}) const;  // of the rank's host; without a rank, of all hosts
  // The factor by which serving rows slows computing on the host of a program's rank.
  double beside_servers(int program);
  Compute alone(int program, const program::Instruction& instruction);  // without the slow-down by servers
  Compute pass(int program, const program::Instruction& instruction);
  Compute step(const program::Program& program, int bucket) const;

  const std::vector<program::Program>& programs_;
  const Fold& fold_;
  const plan::Plan& plan_;
  cost::CostModel& cost_model_;
  cost::PricedPlan priced_;
  SharedLinks links_;
  std::map<std::tuple<int, program::Op, int, int, int>, Compute> computed_;  // program, kind, blocks, bucket
  double lookups_ = 0;                                                       // of rows in a step, by all ranks
  std::int64_t row_bytes_ = 1;                                               // bytes of each in Instruction::bytes
  std::vector<double> beside_servers_;                                       // by program; 0: not worked out yet
  std::map<std::tuple<int, program::Op, int, int>, double> messages_;        // program, kind, block, peer
};

}  // namespace tessera::sim
