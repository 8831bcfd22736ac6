#include <map>
#include <nlohmann/json.hpp>

#include "sim/sim.hpp"

namespace tessera::sim {
namespace {

using Json = nlohmann::ordered_json;
using program::Instruction;
using program::Op;

// Rows of a rank: computing, messages by kind, then each group.
constexpr int kFirstGroupRow = 5;

int row_of(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::receive_activation: return 1;
    case Op::send_activation: return 2;
    case Op::receive_gradient: return 3;
    case Op::send_gradient: return 4;
    default: return program::is_compute(instruction.op) ? 0 : kFirstGroupRow + 1 + instruction.group;
  }
}

std::string row_name(const program::Program& program, int row) {
  static const char* const names[kFirstGroupRow] = {"compute", "receive activation", "send activation", "receive gradient",
                                                    "send gradient"};
  if (row < kFirstGroupRow) return names[row];
  const int group = row - kFirstGroupRow - 1;
  return group < 0 ? "alone" : program.groups[group].name;
}

Json meta(const char* what, int rank, int row, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", row}, {"args", {{"name", name}}}};
}

constexpr double kMicroseconds = 1e6;

}  // namespace

std::string to_chrome_trace(const Result& result, const std::vector<program::Program>& programs) {
  std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  std::string separator = "\n";
  const auto add = [&](const Json& event) {
    out += separator + event.dump();
    separator = ",\n";
  };
  for (const auto& program : programs) {
    std::string stages;
    for (const program::Chunk& chunk : program.chunks) stages += text(stages.empty() ? ", stage " : " and ", chunk.stage);
    add(meta("process_name", program.rank, 0, text("rank ", program.rank, stages)));
    std::vector<bool> used(kFirstGroupRow + 1 + program.groups.size(), false);
    for (const Instruction& instruction : program.instructions) used[row_of(instruction)] = true;
    for (std::size_t row = 0; row < used.size(); ++row)
      if (used[row]) add(meta("thread_name", program.rank, static_cast<int>(row), row_name(program, static_cast<int>(row))));
  }
  std::map<int, const program::Program*> program_of;
  for (const auto& program : programs) program_of[program.rank] = &program;
  for (const Span& span : result.spans) {
    const Instruction& instruction = program_of.at(span.rank)->instructions[span.instruction];
    std::string name = program::name_of(instruction.op);
    if (instruction.micro_batch >= 0) name += text(' ', instruction.micro_batch);
    if (const int chunk = program_of.at(span.rank)->chunk_of(instruction.first_block); chunk > 0 && program::is_compute(instruction.op))
      name += text(" of chunk ", chunk);
    Json args = {{"instruction", span.instruction}};
    if (instruction.first_block >= 0) args["blocks"] = text('[', instruction.first_block, ", ", instruction.last_block, ')');
    if (instruction.bucket >= 0) args["bucket"] = instruction.bucket;
    if (instruction.bytes.value > 0) args["bytes"] = instruction.bytes.value;
    add({{"ph", "X"},
         {"name", name},
         {"pid", span.rank},
         {"tid", row_of(instruction)},
         {"ts", span.begin.value * kMicroseconds},
         {"dur", (span.end - span.begin).value * kMicroseconds},
         {"args", args}});
    if (span.exchange > Seconds(0))
      add({{"ph", "X"},
           {"name", "exchange"},
           {"pid", span.rank},
           {"tid", row_of(instruction)},
           {"ts", (span.end - span.exchange).value * kMicroseconds},
           {"dur", span.exchange.value * kMicroseconds}});
  }
  for (const MemoryPoint& point : result.memory)
    add({{"ph", "C"},
         {"name", "memory"},
         {"pid", point.rank},
         {"ts", point.time.value * kMicroseconds},
         {"args", {{"bytes", point.bytes.value}}}});
  return out + "\n]}\n";
}

}  // namespace tessera::sim
