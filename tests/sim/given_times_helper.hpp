// Runs programs by given times of a stage, to study schedules with.
#pragma once

#include <numeric>

#include "plan/schedule/schedule.hpp"
#include "sim/engine.hpp"

namespace tessera::sim {

class GivenCosts final : public Costs {
 public:
  GivenCosts(const std::vector<program::Program>& programs, const plan::StageTimes& times) : programs_(programs), times_(times) {}

  Compute compute(int index, const program::Instruction& instruction) override {
    using program::Op;
    if (instruction.op == Op::optimizer_step) return {};
    const program::Chunk& chunk = programs_[index].chunks[programs_[index].chunk_of(instruction.first_block)];
    const double share = static_cast<double>(instruction.last_block - instruction.first_block) / (chunk.last_block - chunk.first_block);
    double seconds = 0;
    if (instruction.op == Op::forward) seconds += times_.forward.value;
    if (instruction.op == Op::backward || instruction.op == Op::backward_input) seconds += times_.backward_input.value;
    if (instruction.op == Op::backward || instruction.op == Op::backward_weight) seconds += times_.backward_weight.value;
    return {.seconds = seconds * share, .exposed = {}};
  }
  Transfer message(int, const program::Instruction&) override { return {.seconds = times_.message.value, .uses = {}}; }
  Transfer collective(int, const program::Instruction&) override { return {}; }
  Transfer rows(int, const program::Instruction&) override { return {}; }
  program::MemoryBudget memory(int index) override {
    program::MemoryBudget budget;
    budget.chunks.assign(programs_[index].chunks.size(), {1, 1});
    return budget;
  }

 private:
  const std::vector<program::Program>& programs_;
  const plan::StageTimes& times_;
};

// Collectives and optimizer steps take no time; the activations of one micro-batch in one stage count as one byte. `programs` is by rank.
inline Result run(const std::vector<program::Program>& programs, const plan::StageTimes& times) {
  GivenCosts costs(programs, times);
  std::vector<int> each(programs.size());
  std::iota(each.begin(), each.end(), 0);
  return run_programs(programs, each, costs);
}

}  // namespace tessera::sim
