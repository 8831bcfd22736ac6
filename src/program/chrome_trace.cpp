#include "program/chrome_trace.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "program/read_trace.hpp"

namespace tessera::program {
namespace {

using Json = nlohmann::ordered_json;

// Rows of a rank: its steps, computing, messages by kind, what has no group, what goes to and from parameter servers, then each group.
constexpr int kStepRow = 0;
constexpr int kComputeRow = 1;
constexpr int kAloneRow = 6;  // of collectives that have no group
constexpr int kServersRow = kAloneRow + 1;
constexpr int kFirstGroupRow = kServersRow + 1;

int row_of(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::receive_activation: return 2;
    case Op::send_activation: return 3;
    case Op::receive_gradient: return 4;
    case Op::send_gradient: return 5;
    case Op::pull_rows:
    case Op::push_rows: return kServersRow;
    default: return is_compute(instruction.op) ? kComputeRow : instruction.group < 0 ? kAloneRow : kFirstGroupRow + instruction.group;
  }
}

std::string row_name(const Program& program, int row) {
  static const char* const names[kFirstGroupRow] = {"step",          "compute", "receive activation", "send activation", "receive gradient",
                                                    "send gradient", "alone",   "parameter servers"};
  return row < kFirstGroupRow ? names[row] : program.groups[row - kFirstGroupRow].name;
}

Json meta(const char* what, int rank, int row, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", row}, {"args", {{"name", name}}}};
}

constexpr double kMicroseconds = 1e6;

Json event(const std::string& name, int rank, int row, Seconds begin, Seconds end, Json args) {
  return {{"ph", "X"},
          {"name", name},
          {"pid", rank},
          {"tid", row},
          {"ts", begin.value * kMicroseconds},
          {"dur", (end - begin).value * kMicroseconds},
          {"args", std::move(args)}};
}

Json args_of(const Program& program, int index, std::int64_t step) {
  const Instruction& instruction = program.instructions[index];
  Json args = {{"step", step}, {"instruction", index}, {"op", name_of(instruction.op)}};
  if (instruction.micro_batch >= 0) args["micro_batch"] = instruction.micro_batch;
  if (const int chunk = program.chunk_of(instruction.first_block); chunk >= 0) args["stage"] = program.chunks[chunk].stage;
  if (instruction.first_block >= 0) args["blocks"] = text('[', instruction.first_block, ", ", instruction.last_block, ')');
  if (instruction.peer >= 0) args["peer"] = instruction.peer;
  if (instruction.bucket >= 0) args["bucket"] = instruction.bucket;
  if (instruction.group >= 0) args["group"] = program.groups[instruction.group].name;
  if (instruction.bytes.value > 0) args["bytes"] = instruction.bytes.value;
  return args;
}

// Beyond these it is no trace: times in seconds, ranks and instructions.
constexpr double kLongest = 1e10;
constexpr std::int64_t kMost = std::int64_t{1} << 30;

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::corrupt, "the trace cannot be read: " + what, {name, 0, 0, -1, {}},
              "a trace as a run or `simulate --trace` writes it");
}

std::optional<Op> op_named(const std::string& name) {
  for (int op = 0; op <= static_cast<int>(Op::push_rows); ++op)
    if (name == name_of(static_cast<Op>(op))) return static_cast<Op>(op);
  return std::nullopt;
}

Interval time_of(const nlohmann::json& event, const std::string& name) {
  const double begin = event.at("ts").get<double>() / kMicroseconds;
  const double length = event.at("dur").get<double>() / kMicroseconds;
  if (!(std::abs(begin) < kLongest && length >= 0 && length < kLongest))
    refuse(name, text("the time of '", event.at("name").get<std::string>(), "' is none"));
  return {Seconds(begin), Seconds(begin + length)};
}

int index_of(const nlohmann::json& value, const std::string& name) {
  const auto index = value.get<std::int64_t>();
  if (index < 0 || index >= kMost) refuse(name, text(index, " is the number of no rank or instruction"));
  return static_cast<int>(index);
}

TracedInstruction instruction_of(const nlohmann::json& event, const std::string& name) {
  const nlohmann::json& args = event.at("args");
  const std::string op = args.at("op").get<std::string>();
  const auto known = op_named(op);
  if (!known) refuse(name, text("'", op, "' is no instruction"));
  return {.op = *known,
          .label = event.at("name").get<std::string>(),
          .blocks = args.value("blocks", ""),
          .group = args.value("group", ""),
          .micro_batch = args.value("micro_batch", -1),
          .peer = args.value("peer", -1),
          .bucket = args.value("bucket", -1),
          .bytes = Bytes(args.value("bytes", std::int64_t{0})),
          .time = time_of(event, name)};
}

struct TracedExchange {
  std::int64_t step;
  int rank;
  int instruction;
  Interval time;
};

}  // namespace

std::string label_of(const Program& program, const Instruction& instruction) {
  std::string label = name_of(instruction.op);
  if (instruction.micro_batch >= 0) label += text(" m", instruction.micro_batch);
  if (const int chunk = program.chunk_of(instruction.first_block); chunk > 0 && is_compute(instruction.op))
    label += text(" of chunk ", chunk);
  if (instruction.bucket >= 0) label += text(" bucket ", instruction.bucket);
  return label;
}

void ChromeTrace::append(const std::string& events) {
  if (events.empty()) return;
  if (!events_.empty()) events_ += ",\n";
  events_ += events;
}

void ChromeTrace::add_rank(const Program& program) {
  std::string stages;
  for (const Chunk& chunk : program.chunks) stages += text(stages.empty() ? ", stage " : " and ", chunk.stage);
  append(meta("process_name", program.rank, 0, text("rank ", program.rank, stages)).dump());
  std::vector<bool> used(kFirstGroupRow + program.groups.size(), false);
  used[kStepRow] = true;
  for (const Instruction& instruction : program.instructions) used[row_of(instruction)] = true;
  for (int row = 0; row < static_cast<int>(used.size()); ++row)
    if (used[row]) append(meta("thread_name", program.rank, row, row_name(program, row)).dump());
}

void ChromeTrace::add(const Program& program, int instruction, std::int64_t step, Seconds begin, Seconds end) {
  const Instruction& of = program.instructions[instruction];
  append(event(label_of(program, of), program.rank, row_of(of), begin, end, args_of(program, instruction, step)).dump());
}

void ChromeTrace::add_exposed(const Program& program, int instruction, std::int64_t step, Seconds begin, Seconds end) {
  Json args = args_of(program, instruction, step);
  args["op"] = "exposed_communication";
  append(event("exposed_communication", program.rank, kComputeRow, begin, end, std::move(args)).dump());
}

void ChromeTrace::add_work(const Program& program, const std::string& name, std::int64_t step, Seconds begin, Seconds end) {
  append(event(name, program.rank, kComputeRow, begin, end, {{"step", step}}).dump());
}

void ChromeTrace::add_step(const Program& program, std::int64_t step, Seconds begin, Seconds end) {
  append(event(text("step ", step), program.rank, kStepRow, begin, end, {{"step", step}}).dump());
}

void ChromeTrace::add_memory(int rank, Seconds time, Bytes bytes) {
  append(Json({{"ph", "C"}, {"name", "memory"}, {"pid", rank}, {"ts", time.value * kMicroseconds}, {"args", {{"bytes", bytes.value}}}})
             .dump());
}

std::string ChromeTrace::to_json() const { return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" + events_ + "\n]}\n"; }

std::map<std::int64_t, TracedStep> read_trace(const std::string& json, const std::string& name) {
  std::map<std::int64_t, TracedStep> steps;
  std::set<std::pair<std::int64_t, int>> whole;
  std::vector<TracedExchange> exchanges;
  try {
    const nlohmann::json trace = nlohmann::json::parse(json);
    for (const nlohmann::json& event : trace.at("traceEvents")) {
      if (event.at("ph") != "X") continue;
      const nlohmann::json& args = event.at("args");
      const auto step = args.at("step").get<std::int64_t>();
      const int rank = index_of(event.at("pid"), name);
      const auto title = event.at("name").get<std::string>();
      TracedRank& of = steps[step][rank];
      if (title == text("step ", step)) {
        of.step = time_of(event, name);
        whole.insert({step, rank});
      } else if (title == "exposed_communication") {
        exchanges.push_back({step, rank, index_of(args.at("instruction"), name), time_of(event, name)});
      } else if (args.contains("instruction")) {
        of.instructions[index_of(args.at("instruction"), name)] = instruction_of(event, name);
      } else {
        of.work.push_back({title, time_of(event, name)});
      }
    }
  } catch (const nlohmann::json::exception& problem) {
    refuse(name, problem.what());
  }
  for (const TracedExchange& exchange : exchanges) {
    auto& instructions = steps[exchange.step][exchange.rank].instructions;
    const auto found = instructions.find(exchange.instruction);
    if (found == instructions.end()) refuse(name, text("an exchange of step ", exchange.step, " belongs to no instruction"));
    found->second.exchanges.push_back(exchange.time);
  }
  for (const auto& [step, ranks] : steps)
    for (const auto& [rank, of] : ranks)
      if (!whole.contains({step, rank})) refuse(name, text("of rank ", rank, " step ", step, " is missing as a whole"));
  return steps;
}

}  // namespace tessera::program
