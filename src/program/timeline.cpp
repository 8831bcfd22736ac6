#include "program/timeline.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

namespace tessera::program {
namespace {

using Intervals = std::vector<Interval>;

bool is_receive(Op op) { return is_message(op) && !is_send(op); }

// In order, without overlap.
Intervals united(Intervals intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  Intervals out;
  for (const Interval& one : intervals) {
    if (!out.empty() && one.begin <= out.back().end)
      out.back().end = std::max(out.back().end, one.end);
    else if (one.end > one.begin)
      out.push_back(one);
  }
  return out;
}

// The parts of `whole` that none of `holes` covers; both as united() returns them.
Intervals without(const Intervals& whole, const Intervals& holes) {
  Intervals out;
  auto hole = holes.begin();
  for (Interval rest : whole) {
    while (hole != holes.end() && hole->end <= rest.begin) ++hole;
    for (auto next = hole; next != holes.end() && next->begin < rest.end; ++next) {
      if (next->begin > rest.begin) out.push_back({rest.begin, next->begin});
      rest.begin = next->end;
    }
    if (rest.end > rest.begin) out.push_back(rest);
  }
  return out;
}

Seconds length_of(const Intervals& intervals) {
  Seconds out(0);
  for (const Interval& one : intervals) out = out + (one.end - one.begin);
  return out;
}

double median(std::vector<double> values) {
  const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), half, values.end());
  if (values.size() % 2 == 1) return *half;
  return (*half + *std::max_element(values.begin(), half)) / 2;
}

// Equal for all who take part in a communication, and only for them.
using Meeting = std::tuple<std::string, int, int, int, std::string>;

Meeting meeting_of(int rank, const TracedInstruction& of, int occurrence) {
  if (!is_message(of.op)) return {name_of(of.op), of.group.empty() ? rank : -1, -1, occurrence, of.group};
  const bool activation = of.op == Op::send_activation || of.op == Op::receive_activation;
  const auto [from, to] = is_receive(of.op) ? std::pair(of.peer, rank) : std::pair(rank, of.peer);
  // Both name the block whose inputs they are; where they leave off may differ.
  return {activation ? "activation" : "gradient", from, to, of.micro_batch, of.blocks.substr(0, of.blocks.find(','))};
}

RankTime time_of(const TracedRank& rank, int index, const std::map<InstructionKey, Interval>& transfers) {
  Intervals exchanges, computing, moving, reading;
  for (const auto& [key, instruction] : rank.instructions) {
    if (is_compute(instruction.op)) {
      computing.push_back(instruction.time);
      exchanges.insert(exchanges.end(), instruction.exchanges.begin(), instruction.exchanges.end());
    } else {
      const auto parts = within(rank.step, transfers.at({index, key}));
      moving.insert(moving.end(), parts.begin(), parts.end());
    }
  }
  for (const TracedWork& work : rank.work) (work.name == "samples" ? reading : computing).push_back(work.time);
  exchanges = united(exchanges);
  moving.insert(moving.end(), exchanges.begin(), exchanges.end());
  const Intervals step = {rank.step};
  const Intervals rest = without(step, without(united(computing), exchanges));
  const Intervals waiting = without(rest, united(reading));
  const Intervals idle = without(waiting, united(moving));
  const Intervals exposures = without(waiting, idle);
  return {.computing = rank.step.end - rank.step.begin - length_of(rest),
          .exposed = length_of(exposures),
          .reading = length_of(rest) - length_of(waiting),
          .idle = length_of(idle),
          .exposures = exposures};
}

RankTime operator+(const RankTime& a, const RankTime& b) {
  return {a.computing + b.computing, a.exposed + b.exposed, a.reading + b.reading, a.idle + b.idle, {}};
}
RankTime operator*(const RankTime& time, double factor) {
  return {time.computing * factor, time.exposed * factor, time.reading * factor, time.idle * factor, {}};
}

RankTime mean_of(const std::map<int, RankTime>& ranks) {
  RankTime sum;
  for (const auto& [rank, time] : ranks) sum = sum + time;
  return sum * (1 / static_cast<double>(ranks.size()));
}

// Adds up to `length`, where each of `times` adds up to its step's.
RankTime typical_of(const std::vector<RankTime>& times, Seconds length) {
  RankTime shares;
  for (const RankTime& time : times) {
    const Seconds whole = time.computing + time.exposed + time.reading + time.idle;
    if (whole > Seconds(0)) shares = shares + time * (1 / (whole.value * static_cast<double>(times.size())));
  }
  return shares * length.value;
}

}  // namespace

std::map<InstructionKey, Interval> transfers_of(const TracedStep& step) {
  std::map<Meeting, std::vector<std::pair<InstructionKey, const TracedInstruction*>>> meetings;
  for (const auto& [rank, of] : step) {
    std::map<std::pair<Op, std::string>, int> seen;
    for (const auto& [index, instruction] : of.instructions)
      if (!is_compute(instruction.op))
        meetings[meeting_of(rank, instruction, seen[{instruction.op, instruction.group}]++)].emplace_back(InstructionKey(rank, index),
                                                                                                          &instruction);
  }
  std::map<InstructionKey, Interval> out;
  for (const auto& [meeting, members] : meetings) {
    Seconds begin = members.front().second->time.begin;
    std::optional<Seconds> received;
    for (const auto& [key, instruction] : members) {
      begin = std::max(begin, instruction->time.begin);
      if (is_receive(instruction->op)) received = std::max(received.value_or(instruction->time.end), instruction->time.end);
    }
    for (const auto& [key, instruction] : members) {
      const Seconds end = received.value_or(instruction->time.end);
      out[key] = {std::min(begin, end), end};
    }
  }
  return out;
}

std::vector<Interval> within(const Interval& step, const Interval& transfer) {
  if (transfer.end <= step.end) return {transfer};
  std::vector<Interval> out = {{step.begin, std::min(step.end, transfer.end - (step.end - step.begin))}};
  if (transfer.begin < step.end) out.push_back({transfer.begin, step.end});
  return out;
}

std::map<int, RankTime> times_of(const TracedStep& step, const std::map<InstructionKey, Interval>& transfers) {
  std::map<int, RankTime> out;
  for (const auto& [rank, of] : step) out[rank] = time_of(of, rank, transfers);
  return out;
}

StepFigures figures_of(const TracedStep& step) {
  StepFigures out;
  Seconds origin = step.begin()->second.step.begin;
  Seconds end = step.begin()->second.step.end;
  for (const auto& [rank, of] : step) {
    origin = std::min(origin, of.step.begin);
    end = std::max(end, of.step.end);
  }
  out.length = end - origin;
  const auto transfers = transfers_of(step);
  out.ranks = times_of(step, transfers);
  out.mean = mean_of(out.ranks);
  for (const auto& [rank, of] : step) {
    Seconds stepping(0);
    Seconds beside(0);
    for (const auto& [index, instruction] : of.instructions)
      if (instruction.op == Op::optimizer_step) stepping = stepping + (instruction.time.end - instruction.time.begin);
    for (const TracedWork& work : of.work)
      if (work.name != "samples") beside = beside + (work.time.end - work.time.begin);
    const double scale = stepping > Seconds(0) ? 1 + beside.value / stepping.value : 1;
    for (const auto& [index, instruction] : of.instructions) {
      const auto transfer = transfers.find({rank, index});
      const Interval time = transfer == transfers.end() ? instruction.time : transfer->second;
      out.instructions[{rank, index}] = {instruction.op, (time.end - time.begin) * (instruction.op == Op::optimizer_step ? scale : 1),
                                         time.begin - origin};
    }
  }
  return out;
}

StepFigures median_of(const std::vector<StepFigures>& steps) {
  StepFigures out;
  std::vector<double> lengths;
  std::vector<RankTime> means;
  std::map<int, std::vector<RankTime>> ranks;
  struct Values {
    Op op;
    std::vector<double> durations;
    std::vector<double> begins;
  };
  std::map<InstructionKey, Values> values;
  for (const StepFigures& step : steps) {
    lengths.push_back(step.length.value);
    means.push_back(step.mean);
    for (const auto& [rank, time] : step.ranks) ranks[rank].push_back(time);
    for (const auto& [key, time] : step.instructions) {
      Values& of = values[key];
      of.op = time.op;
      of.durations.push_back(time.duration.value);
      of.begins.push_back(time.begin.value);
    }
  }
  out.length = Seconds(median(lengths));
  out.mean = typical_of(means, out.length);
  for (const auto& [rank, times] : ranks) out.ranks[rank] = typical_of(times, out.length);
  for (auto& [key, of] : values)
    out.instructions[key] = {of.op, Seconds(median(std::move(of.durations))), Seconds(median(std::move(of.begins)))};
  return out;
}

std::vector<KindFigures> kinds_of(const StepFigures& step) {
  std::map<Op, std::vector<double>> durations;
  for (const auto& [key, time] : step.instructions) durations[time.op].push_back(time.duration.value);
  std::vector<KindFigures> out;
  for (const auto& [op, of] : durations) {
    KindFigures kind{op, static_cast<int>(of.size()), Seconds(median(of)), Seconds(0)};
    for (const double seconds : of) kind.total = kind.total + Seconds(seconds);
    out.push_back(kind);
  }
  return out;
}

}  // namespace tessera::program
