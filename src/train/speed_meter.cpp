#include "train/speed_meter.hpp"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <cmath>

#include "train/clocks.hpp"

namespace tessera::train {
namespace {

constexpr std::int64_t kWarmUp = 2;
// Seconds. Shorter ones would name ranks that another process takes the core from for a moment.
constexpr double kWindow = 1;
// Steps may become much longer within a window.
constexpr double kMostSteps = 50;
constexpr std::uint32_t kTag = 2;  // no message of a program has it
constexpr std::size_t kHeader = 1;
constexpr double kAbsent = -1;

using HostName = std::array<char, 64>;

HostName host_name() {
  HostName out{};
  ::gethostname(out.data(), out.size() - 1);
  return out;
}

std::size_t size_of(const program::Program& program) { return kHeader + 2 * program.instructions.size(); }

Seconds length_of(const std::vector<program::Interval>& intervals) {
  Seconds out(0);
  for (const program::Interval& one : intervals) out += one.end - one.begin;
  return out;
}

}  // namespace

SpeedMeter::SpeedMeter(std::vector<program::Program> programs, comm::Communicator& comm) : programs_(std::move(programs)), comm_(comm) {}

// Of the next window, by how long a step takes on the rank where it takes longest.
void SpeedMeter::agree_on_steps(Seconds step) {
  double longest = step.value;
  comm_.world().all_reduce(&longest, 1, comm::DataType::f64, comm::Reduction::max).wait();
  every_ = static_cast<std::int64_t>(std::clamp(std::ceil(kWindow / std::max(longest, 1e-6)), 1.0, kMostSteps));
}

// Once.
void SpeedMeter::begin() {
  apart_ = on_several_hosts(comm_);
  const HostName own = host_name();
  std::vector<HostName> all(static_cast<std::size_t>(comm_.world_size()));
  comm_.world().all_gather(own.data(), all.data(), own.size(), comm::DataType::u8).wait();
  if (comm_.rank() != 0) return;
  std::vector<std::string> hosts;
  for (const HostName& name : all) hosts.emplace_back(name.data());
  watch_ = std::make_unique<SpeedWatch>(programs_, std::move(hosts));
}

// How long this rank computes in a step; then two numbers for each instruction: of communication when it began and ended, of others 0 and
// how long they exchanged.
std::vector<double> SpeedMeter::packed(const program::TracedRank& step, Seconds offset) const {
  const program::Program& program = programs_.at(static_cast<std::size_t>(comm_.rank()));
  std::vector<double> out(size_of(program), kAbsent);
  out[0] = window_.computing.front().value / static_cast<double>(window_.steps);
  for (const auto& [index, instruction] : step.instructions) {
    const std::size_t at = kHeader + 2 * static_cast<std::size_t>(index);
    const bool computes = program::is_compute(instruction.op);
    out.at(at) = computes ? 0 : (instruction.time.begin + offset).value;
    out.at(at + 1) = computes ? length_of(instruction.exchanges).value : (instruction.time.end + offset).value;
  }
  return out;
}

void SpeedMeter::unpack(int rank, const std::vector<double>& values, SpeedWindow& window, program::TracedStep& step) const {
  const program::Program& program = programs_.at(static_cast<std::size_t>(rank));
  window.computing.emplace_back(values.front());
  program::TracedRank& of = step[rank];
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const double begin = values[kHeader + 2 * i];
    const double end = values[kHeader + 2 * i + 1];
    if (begin == kAbsent && end == kAbsent) continue;
    const program::Instruction& instruction = program.instructions[i];
    program::TracedInstruction& traced = of.instructions[static_cast<int>(i)];
    traced.op = instruction.op;
    traced.micro_batch = instruction.micro_batch;
    traced.peer = instruction.peer;
    traced.blocks = text('[', instruction.first_block, ',');
    if (instruction.group >= 0) traced.group = program.groups.at(static_cast<std::size_t>(instruction.group)).name;
    const program::Interval time{Seconds(begin), Seconds(end)};
    if (program::is_compute(instruction.op))
      traced.exchanges.push_back(time);
    else
      traced.time = time;
  }
}

std::vector<SpeedChange> SpeedMeter::add(const program::TracedRank& step) {
  const int world = comm_.world_size();
  if (++made_ <= kWarmUp) return {};
  const Seconds length = step.step.end - step.step.begin;
  if (every_ == 0) {
    agree_on_steps(length);
    begin();
  }
  Seconds computing(0);
  for (const auto& [index, instruction] : step.instructions)
    if (program::is_compute(instruction.op)) computing += instruction.time.end - instruction.time.begin - length_of(instruction.exchanges);
  if (window_.computing.empty()) window_ = {.steps = 0, .step = Seconds(0), .computing = {Seconds(0)}, .exchanges = {}};
  ++window_.steps;
  window_.step += length;
  window_.computing.front() += computing;
  if (window_.steps < every_) return {};
  const std::vector<double> own = packed(step, apart_ ? ahead(comm_) : Seconds(0));
  SpeedWindow window{.steps = window_.steps, .step = window_.step / static_cast<double>(window_.steps), .computing = {}, .exchanges = {}};
  window_.computing.clear();
  agree_on_steps(window.step);
  if (comm_.rank() != 0) {
    comm_.world().send(std::as_bytes(std::span(own)), 0, kTag).wait();
    return {};
  }
  program::TracedStep gathered;
  unpack(0, own, window, gathered);
  for (int rank = 1; rank < world; ++rank) {
    std::vector<double> theirs(size_of(programs_.at(static_cast<std::size_t>(rank))));
    comm_.world().receive(std::as_writable_bytes(std::span(theirs)), rank, kTag).wait();
    unpack(rank, theirs, window, gathered);
  }
  window.exchanges = exchanges_of(programs_, gathered);
  return watch_->add(window);
}

}  // namespace tessera::train
