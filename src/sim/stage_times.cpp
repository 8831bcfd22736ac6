#include "sim/stage_times.hpp"

namespace tessera::sim {

using program::Op;

Compute GivenCosts::compute(int program, const program::Instruction& instruction) {
  if (instruction.op == Op::optimizer_step) return {};
  const program::Chunk& chunk = programs_[program].chunks[programs_[program].chunk_of(instruction.first_block)];
  const double share = static_cast<double>(instruction.last_block - instruction.first_block) / (chunk.last_block - chunk.first_block);
  double seconds = 0;
  if (instruction.op == Op::forward) seconds += times_.forward.value;
  if (instruction.op == Op::backward || instruction.op == Op::backward_input) seconds += times_.backward_input.value;
  if (instruction.op == Op::backward || instruction.op == Op::backward_weight) seconds += times_.backward_weight.value;
  return {.seconds = seconds * share, .exposed = {}};
}

program::MemoryBudget GivenCosts::memory(int program) {
  program::MemoryBudget budget;
  budget.chunks.assign(programs_[program].chunks.size(), {1, 1});
  return budget;
}

}  // namespace tessera::sim
