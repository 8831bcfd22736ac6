#include "program/program.hpp"

#include <algorithm>

namespace tessera::program {

namespace {

constexpr const char *kComputed = "what it computes", *kActivations = "activations", *kGradients = "gradients of activations",
                     *kSum = "the sum of gradients";

struct Words {
  const char* name;
  const char* awaited;  // what it is that those who wait for it wait for
};
// By Op.
constexpr Words kWords[] = {{"forward", kComputed},
                            {"backward", kComputed},
                            {"backward_input", kComputed},
                            {"backward_weight", kComputed},
                            {"send_activation", kActivations},
                            {"receive_activation", kActivations},
                            {"send_gradient", kGradients},
                            {"receive_gradient", kGradients},
                            {"gather_activation", kActivations},
                            {"gather_gradient", kGradients},
                            {"reduce_tied", "the sum of tied gradients"},
                            {"reduce_gradients", kSum},
                            {"reduce_shards", kSum},
                            {"reduce_norm", "the norm of all gradients"},
                            {"optimizer_step", kComputed},
                            {"gather_parameters", "parameters"},
                            {"pull_rows", "rows of tables"},
                            {"push_rows", "gradients of rows"}};
static_assert(std::size(kWords) == static_cast<std::size_t>(Op::push_rows) + 1);

const Words& words_of(Op op) { return kWords[static_cast<std::size_t>(op)]; }

std::string with_index(std::string what, const Instruction& instruction) {
  if (instruction.micro_batch >= 0) what += text(" of micro-batch ", instruction.micro_batch);
  if (instruction.bucket >= 0) what += text(" of bucket ", instruction.bucket);
  return what;
}

}  // namespace

const char* name_of(Op op) { return words_of(op).name; }

bool is_compute(Op op) {
  return op == Op::forward || op == Op::backward || op == Op::backward_input || op == Op::backward_weight || op == Op::optimizer_step;
}

bool is_send(Op op) { return op == Op::send_activation || op == Op::send_gradient; }

bool is_message(Op op) { return is_send(op) || op == Op::receive_activation || op == Op::receive_gradient; }

bool is_gather_of_inputs(Op op) { return op == Op::gather_activation || op == Op::gather_gradient; }

bool is_of_rows(Op op) { return op == Op::pull_rows || op == Op::push_rows; }

bool Program::crosses_steps() const {
  return delayed || std::ranges::any_of(instructions, [](const Instruction& each) { return !each.after_previous.empty(); });
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

std::int64_t change_of(const plan::ChunkBytes& of, Op pass) {
  switch (pass) {
    case Op::forward: return of.saved;
    case Op::backward: return -of.saved;
    case Op::backward_input: return of.saved_for_weight - of.saved;
    default: return -of.saved_for_weight;
  }
}

std::string place(const Program& program, int index) {
  return with_index(name_of(program.instructions[index].op), program.instructions[index]);
}

std::string label(const Program& program, int index) {
  return text("rank ", program.rank, " instruction ", index, " (", place(program, index), ")");
}

std::string awaited(const Program& program, int index) {
  const Instruction& instruction = program.instructions[index];
  const std::string out = with_index(words_of(instruction.op).awaited, instruction);
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
