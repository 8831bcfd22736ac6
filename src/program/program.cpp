#include "program/program.hpp"

#include <algorithm>

namespace tessera::program {

namespace {

// By Op.
constexpr const char* kNames[] = {
    "forward",       "backward",         "backward_input",    "backward_weight",   "send_activation", "receive_activation",
    "send_gradient", "receive_gradient", "gather_activation", "gather_gradient",   "reduce_tied",     "reduce_gradients",
    "reduce_shards", "reduce_norm",      "optimizer_step",    "gather_parameters", "pull_rows",       "push_rows"};
static_assert(std::size(kNames) == static_cast<std::size_t>(Op::push_rows) + 1);

}  // namespace

const char* name_of(Op op) { return kNames[static_cast<std::size_t>(op)]; }

bool is_compute(Op op) {
  return op == Op::forward || op == Op::backward || op == Op::backward_input || op == Op::backward_weight || op == Op::optimizer_step;
}

bool is_send(Op op) { return op == Op::send_activation || op == Op::send_gradient; }

bool is_message(Op op) { return is_send(op) || op == Op::receive_activation || op == Op::receive_gradient; }

bool is_gather_of_inputs(Op op) { return op == Op::gather_activation || op == Op::gather_gradient; }

bool is_of_rows(Op op) { return op == Op::pull_rows || op == Op::push_rows; }

bool Program::crosses_steps() const {
  return delayed ||
         std::any_of(instructions.begin(), instructions.end(), [](const Instruction& each) { return !each.after_previous.empty(); });
}

const plan::Strategy& Program::strategy_of(int block) const {
  const Chunk& chunk = chunks.at(static_cast<std::size_t>(chunk_of(block)));
  return chunk.strategies.at(static_cast<std::size_t>(block - chunk.first_block));
}

int Program::chunk_of(int block) const {
  for (std::size_t c = 0; c < chunks.size(); ++c)
    if (block >= chunks[c].first_block && block < chunks[c].last_block) return static_cast<int>(c);
  return -1;
}

int Program::cut_index(int block) const {
  for (std::size_t c = 0; c < cuts.size(); ++c)
    if (block >= cuts[c].first_block && block < cuts[c].last_block) return static_cast<int>(c);
  throw Error(ErrorCode::internal, text("rank ", rank, " does not hold block ", block));
}

std::vector<Program> unrolled(std::vector<Program> programs, int steps) {
  for (Program& program : programs) {
    const std::vector<Instruction> once = program.instructions;
    const auto count = static_cast<int>(once.size());
    for (int step = 1; step < steps; ++step)
      for (Instruction instruction : once) {
        for (int& dependency : instruction.after) dependency += step * count;
        for (const int dependency : instruction.after_previous) instruction.after.push_back((step - 1) * count + dependency);
        program.instructions.push_back(std::move(instruction));
      }
    for (Instruction& instruction : program.instructions) instruction.after_previous.clear();
  }
  return programs;
}

Part Cut::part(std::int64_t each, int ahead) const {
  const int index = (dp_index * context_size + context_index) * tp_size + tp_index + ahead;
  const int replica = index / (context_size * tp_size);
  Part out{.samples_before = samples_before + (replica - dp_index) * micro_batch_size,
           .samples = micro_batch_size,
           .context_index = index / tp_size % context_size,
           .context_size = context_size};
  const std::int64_t held = micro_batch_size * each / context_size;
  out.begin = held * (index % tp_size) / tp_size;
  out.end = held * (index % tp_size + 1) / tp_size;
  return out;
}

std::string place(const Program& program, int index) {
  const Instruction& instruction = program.instructions[index];
  std::string out = name_of(instruction.op);
  if (instruction.micro_batch >= 0) out += text(" of micro-batch ", instruction.micro_batch);
  if (instruction.bucket >= 0) out += text(" of bucket ", instruction.bucket);
  return out;
}

std::string label(const Program& program, int index) {
  return text("rank ", program.rank, " instruction ", index, " (", place(program, index), ")");
}

namespace {

std::string what_comes_of(Op op) {
  switch (op) {
    case Op::send_activation:
    case Op::receive_activation:
    case Op::gather_activation: return "activations";
    case Op::send_gradient:
    case Op::receive_gradient:
    case Op::gather_gradient: return "gradients of activations";
    case Op::reduce_tied: return "the sum of tied gradients";
    case Op::reduce_gradients:
    case Op::reduce_shards: return "the sum of gradients";
    case Op::reduce_norm: return "the norm of all gradients";
    case Op::gather_parameters: return "parameters";
    case Op::pull_rows: return "rows of tables";
    case Op::push_rows: return "gradients of rows";
    default: return "what it computes";
  }
}

}  // namespace

std::string awaited(const Program& program, int index) {
  const Instruction& instruction = program.instructions[index];
  std::string out = what_comes_of(instruction.op);
  if (instruction.micro_batch >= 0) out += text(" of micro-batch ", instruction.micro_batch);
  if (instruction.bucket >= 0) out += text(" of bucket ", instruction.bucket);
  if (is_of_rows(instruction.op))
    return out + (instruction.op == Op::pull_rows ? " from parameter servers" : " to be taken by parameter servers");
  if (instruction.peer >= 0) return out + text(is_send(instruction.op) ? " to be taken by rank " : " from rank ", instruction.peer);
  if (instruction.group < 0) return out;
  std::string others;
  int count = 0;
  for (const int rank : program.groups[instruction.group].ranks) {
    if (rank == program.rank) continue;
    ++count;
    others += text(others.empty() ? "" : ", ", rank);
  }
  return out + text(count == 1 ? " with rank " : " with ranks ", others);
}

}  // namespace tessera::program
