#include "program/read_trace.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

namespace tessera::program {
namespace {

using Json = nlohmann::json;

constexpr double kMicroseconds = 1e6;
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

Interval time_of(const Json& event, const std::string& name) {
  const double begin = event.at("ts").get<double>() / kMicroseconds;
  const double length = event.at("dur").get<double>() / kMicroseconds;
  if (!(std::abs(begin) < kLongest && length >= 0 && length < kLongest))
    refuse(name, text("the time of '", event.at("name").get<std::string>(), "' is none"));
  return {Seconds(begin), Seconds(begin + length)};
}

int index_of(const Json& value, const std::string& name) {
  const auto index = value.get<std::int64_t>();
  if (index < 0 || index >= kMost) refuse(name, text(index, " is the number of no rank or instruction"));
  return static_cast<int>(index);
}

TracedInstruction instruction_of(const Json& event, const std::string& name) {
  const Json& args = event.at("args");
  const std::string op = args.at("op").get<std::string>();
  const auto known = op_named(op);
  if (!known) refuse(name, text("'", op, "' is no instruction"));
  TracedInstruction out;
  out.op = *known;
  out.label = event.at("name").get<std::string>();
  out.blocks = args.value("blocks", "");
  out.group = args.value("group", "");
  out.micro_batch = args.value("micro_batch", -1);
  out.peer = args.value("peer", -1);
  out.bucket = args.value("bucket", -1);
  out.bytes = Bytes(args.value("bytes", std::int64_t{0}));
  out.time = time_of(event, name);
  return out;
}

struct TracedExchange {
  std::int64_t step;
  int rank;
  int instruction;
  Interval time;
};

}  // namespace

std::map<std::int64_t, TracedStep> read_trace(const std::string& json, const std::string& name) {
  std::map<std::int64_t, TracedStep> steps;
  std::set<std::pair<std::int64_t, int>> whole;
  std::vector<TracedExchange> exchanges;
  try {
    const Json trace = Json::parse(json);
    for (const Json& event : trace.at("traceEvents")) {
      if (event.at("ph") != "X") continue;
      const Json& args = event.at("args");
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
