#include "sim/loaded.hpp"

#include <algorithm>

namespace tessera::sim {

using program::Instruction;
using program::Op;
using program::Program;

LoadedCosts::LoadedCosts(const std::vector<Program>& programs, const plan::Plan& plan, cost::CostModel& cost_model)
    : programs_(programs), plan_(plan), cost_model_(cost_model) {
  for (const plan::Stage& stage : plan.stages) {
    devices_.push_back(cost_model.devices_of(plan, stage));
    for (const plan::StrategyRun& run : stage.runs)
      strategies_.insert(strategies_.end(), static_cast<std::size_t>(run.last - run.first), &run.strategy);
  }
}

const cost::BlockLoad& LoadedCosts::load_of(const Program& program, int block) {
  return cost_model_.block(cost_model_.repeat_of()[block], devices_of(program), *strategies_[block], plan_.samples());
}

Compute LoadedCosts::compute(int index, const Instruction& instruction) {
  const auto [found, fresh] =
      computed_.try_emplace({index, instruction.op, instruction.first_block, instruction.last_block, instruction.bucket});
  const Program& program = programs_[index];
  if (fresh) found->second = instruction.op == Op::optimizer_step ? step(program, instruction.bucket) : pass(program, instruction);
  return found->second;
}

Compute LoadedCosts::pass(const Program& program, const Instruction& instruction) {
  const int devices = devices_of(program);
  const bool forward = instruction.op == Op::forward;
  const bool input = instruction.op == Op::backward || instruction.op == Op::backward_input;
  const bool weight = instruction.op == Op::backward || instruction.op == Op::backward_weight;
  Compute out;
  for (int b = instruction.first_block; b < instruction.last_block; ++b) {
    const cost::BlockLoad& load = load_of(program, b);
    if (forward) out.seconds += std::max(0.0, load.forward - load.forward_exchange);
    if (forward) out.exchange.seconds += load.forward_exchange;
    if (input) out.seconds += std::max(0.0, load.backward_input - load.backward_exchange);
    if (input) out.exchange.seconds += load.backward_exchange;
    if (weight) out.seconds += load.backward_weight;
    if ((forward || input) && b > 0 && program.chunk_of(b - 1) >= 0)
      out.exchange.seconds +=
          cost_model_.reshard(cost_model_.repeat_of()[b], devices, *strategies_[b - 1], *strategies_[b], plan_.samples());
  }
  if (forward && instruction.first_block == program.chunks[program.chunk_of(instruction.first_block)].first_block)
    out.seconds += cost_model_.micro_batch_host(devices);
  return out;
}

Compute LoadedCosts::step(const Program& program, int bucket) {
  // A block whose parameters stand in several buckets is stepped with the first of them, and what a step costs once likewise.
  const auto first_with = [&](int block) {
    const auto holds = [&](const program::Bucket& candidate) {
      return std::any_of(candidate.entries.begin(), candidate.entries.end(),
                         [&](const program::BucketEntry& entry) { return entry.block == block; });
    };
    return static_cast<int>(std::find_if(program.buckets.begin(), program.buckets.end(), holds) - program.buckets.begin());
  };
  Compute out;
  if (bucket == 0) out.seconds = cost_model_.step_host(devices_of(program));
  int last = -1;
  for (const program::BucketEntry& entry : program.buckets[bucket].entries) {
    if (entry.block == last || first_with(entry.block) != bucket) continue;
    last = entry.block;
    const cost::BlockLoad& load = load_of(program, last);
    out.seconds += load.optimizer;
    out.exchange.seconds += load.exchange;
    // The model's first block owns what others share.
    if (program.chunk_of(0) < 0) out.exchange.seconds += load.tied_exchange;
  }
  return out;
}

Transfer LoadedCosts::message(int index, const Instruction& send) {
  const auto [found, fresh] = messages_.try_emplace({index, send.op, send.first_block});
  if (fresh) {
    const Program& program = programs_[index];
    const bool activation = send.op == Op::send_activation;
    const int from = program.chunks[program.chunk_of(activation ? send.first_block - 1 : send.first_block)].stage;
    const int to = activation ? from + 1 : from - 1;
    found->second = cost_model_.message(cost_model_.input_bytes(cost_model_.repeat_of()[send.first_block], plan_.samples()), devices_[from],
                                        plan_.stages[from].width(), devices_[to], plan_.stages[to].width());
  }
  Transfer out;
  out.seconds = found->second;
  return out;
}

program::MemoryBudget LoadedCosts::memory(int index) {
  const Program& program = programs_[index];
  const int devices = devices_of(program);
  program::MemoryBudget out;
  double fixed = cost_model_.process_bytes(devices);
  double workspace = 0;
  double buffers = 0;
  for (const program::Chunk& chunk : program.chunks) {
    double saved = 0;
    for (int b = chunk.first_block; b < chunk.last_block; ++b) {
      const cost::BlockLoad& load = load_of(program, b);
      fixed += load.state_bytes() + (program.chunk_of(0) < 0 ? load.tied_bytes : 0);
      workspace = std::max(workspace, load.workspace);
      saved += load.saved;
    }
    buffers = std::max(buffers, cost_model_.samples_per_rank(devices, plan_.stages[chunk.stage].width(), plan_.samples()) *
                                    cost::boundary_buffers(cost_model_, plan_, chunk.stage));
    // Blocks keep all that they saved until the weight half has run.
    const Bytes whole(static_cast<std::int64_t>(saved));
    out.chunks.push_back({whole, whole});
  }
  out.fixed = Bytes(static_cast<std::int64_t>(fixed + buffers));
  out.workspace = Bytes(static_cast<std::int64_t>(workspace));
  out.limit = Bytes(static_cast<std::int64_t>(cost_model_.memory_limit(devices)));
  return out;
}

}  // namespace tessera::sim
