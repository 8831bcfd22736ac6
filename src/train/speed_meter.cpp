#include "train/speed_meter.hpp"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <sstream>

#include "train/clocks.hpp"
#include "train/said.hpp"

namespace tessera::train {
namespace {

constexpr std::int64_t kWarmUp = 2;
constexpr std::uint32_t kTag = 2;  // no message of a program has it
constexpr double kAbsent = -1;

using HostName = std::array<char, 64>;

HostName host_name() {
  HostName out{};
  ::gethostname(out.data(), out.size() - 1);
  return out;
}

std::size_t size_of(const program::Program& program) { return 2 * program.instructions.size(); }

Seconds length_of(const std::vector<program::Interval>& intervals) {
  Seconds out(0);
  for (const program::Interval& one : intervals) out += one.end - one.begin;
  return out;
}

// What rank 0 found, on all ranks: a line each.
std::vector<SpeedChange> told(comm::Communicator& comm, const std::vector<SpeedChange>& found) {
  std::string lines;
  for (const SpeedChange& change : found)
    lines += text(change.warns ? 1 : 0, ' ', change.between_hosts ? 1 : 0, ' ', change.rank, ' ', change.ratio, ' ', change.words, '\n');
  std::vector<SpeedChange> out;
  std::istringstream stream(said_by(0, std::move(lines), comm.world()));
  SpeedChange change;
  while (stream >> change.warns >> change.between_hosts >> change.rank >> change.ratio && stream.ignore() &&
         std::getline(stream, change.words))
    out.push_back(change);
  return out;
}

}  // namespace

SpeedMeter::SpeedMeter(std::vector<program::Program> programs, comm::Communicator& comm) : programs_(std::move(programs)), comm_(comm) {}

// Once.
void SpeedMeter::begin() {
  begun_ = true;
  apart_ = on_several_hosts(comm_);
  const HostName own = host_name();
  std::vector<HostName> all(static_cast<std::size_t>(comm_.world_size()));
  comm_.world().all_gather(own.data(), all.data(), own.size(), comm::DataType::u8).wait();
  if (comm_.rank() != 0) return;
  std::vector<std::string> hosts;
  for (const HostName& name : all) hosts.emplace_back(name.data());
  watch_ = std::make_unique<SpeedWatch>(programs_, std::move(hosts));
}

// Two numbers for each instruction: of communication, when it began and ended in the window's last step; of others, how long they computed
// in a step on average, and how long they exchanged in the last.
std::vector<double> SpeedMeter::packed(const program::TracedRank& step, Seconds offset) const {
  const program::Program& program = programs_.at(static_cast<std::size_t>(comm_.rank()));
  std::vector<double> out(size_of(program), kAbsent);
  for (const auto& [index, instruction] : step.instructions) {
    const std::size_t at = 2 * static_cast<std::size_t>(index);
    const bool computes = program::is_compute(instruction.op);
    out.at(at) =
        computes ? window_.computing.at(index).value / static_cast<double>(window_.steps) : (instruction.time.begin + offset).value;
    out.at(at + 1) = computes ? length_of(instruction.exchanges).value : (instruction.time.end + offset).value;
  }
  return out;
}

void SpeedMeter::unpack(int rank, const std::vector<double>& values, SpeedWindow& window, program::TracedStep& step) const {
  const program::Program& program = programs_.at(static_cast<std::size_t>(rank));
  Computing& computing = window.computing.emplace_back();
  program::TracedRank& of = step[rank];
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const double begin = values[2 * i];
    const double end = values[2 * i + 1];
    if (begin == kAbsent && end == kAbsent) continue;
    const program::Instruction& instruction = program.instructions[i];
    program::TracedInstruction& traced = of.instructions[static_cast<int>(i)];
    traced.op = instruction.op;
    traced.micro_batch = instruction.micro_batch;
    traced.peer = instruction.peer;
    traced.blocks = text('[', instruction.first_block, ',');
    if (instruction.group >= 0) traced.group = program.groups.at(static_cast<std::size_t>(instruction.group)).name;
    if (program::is_compute(instruction.op)) {
      computing[work_of(instruction)] += Seconds(begin);
      traced.exchanges.push_back({Seconds(0), Seconds(end)});
    } else {
      traced.time = {Seconds(begin), Seconds(end)};
    }
  }
}

std::vector<SpeedChange> SpeedMeter::add(const program::TracedRank& step, bool compare) {
  if (++made_ <= kWarmUp) return {};
  ++window_.steps;
  window_.step += step.step.end - step.step.begin;
  for (const auto& [index, instruction] : step.instructions)
    if (program::is_compute(instruction.op))
      window_.computing[index] += instruction.time.end - instruction.time.begin - length_of(instruction.exchanges);
  return compare ? compared(step) : std::vector<SpeedChange>();
}

std::vector<SpeedChange> SpeedMeter::compared(const program::TracedRank& step) {
  if (!begun_) begin();
  const std::vector<double> own = packed(step, apart_ ? ahead(comm_) : Seconds(0));
  SpeedWindow window{.steps = window_.steps, .step = window_.step / static_cast<double>(window_.steps), .computing = {}, .exchanges = {}};
  window_ = {};
  if (comm_.rank() != 0) {
    comm_.world().send(std::as_bytes(std::span(own)), 0, kTag).wait();
    return told(comm_, {});
  }
  program::TracedStep gathered;
  unpack(0, own, window, gathered);
  for (int rank = 1; rank < comm_.world_size(); ++rank) {
    std::vector<double> theirs(size_of(programs_.at(static_cast<std::size_t>(rank))));
    comm_.world().receive(std::as_writable_bytes(std::span(theirs)), rank, kTag).wait();
    unpack(rank, theirs, window, gathered);
  }
  window.exchanges = exchanges_of(programs_, gathered);
  return told(comm_, watch_->add(window));
}

}  // namespace tessera::train
