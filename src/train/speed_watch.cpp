#include "train/speed_watch.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "base/error.hpp"
#include "program/timeline.hpp"

namespace tessera::train {
namespace {

constexpr double kSlow = 1.25;
constexpr double kWell = 1.15;  // below, a slow rank is so no longer
constexpr double kDrifted = 1.5;
constexpr double kWorth = 0.05;      // of a step
constexpr int kRunning = 3;          // windows
constexpr int kRunningExchange = 5;  // which are of a single step of each window
constexpr std::size_t kBeginning = 5;

Seconds median(std::vector<Seconds> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Seconds whole(const Computing& computing) {
  Seconds out(0);
  for (const auto& [work, seconds] : computing) out += seconds;
  return out;
}

// Of what several ranks compute, or one in several windows.
Seconds median_of(const std::vector<Computing>& computing) {
  std::vector<Seconds> out;
  for (const Computing& one : computing) out.push_back(whole(one));
  return median(std::move(out));
}

Seconds in(const Computing& computing, const std::string& work) {
  const auto found = computing.find(work);
  return found == computing.end() ? Seconds(0) : found->second;
}

// What `own` does that takes most beyond the median of `others`.
std::string slowest_work(const Computing& own, const std::vector<Computing>& others) {
  std::string out;
  Seconds most(0);
  for (const auto& [work, seconds] : own) {
    std::vector<Seconds> theirs;
    for (const Computing& other : others) theirs.push_back(in(other, work));
    const Seconds more = seconds - median(std::move(theirs));
    if (!out.empty() && more <= most) continue;
    out = work;
    most = more;
  }
  return out;
}

// Equal for ranks that compute the same.
std::string duties_of(const program::Program& program) {
  std::string out;
  for (const program::Chunk& chunk : program.chunks) out += text(chunk.stage, ':', chunk.first_block, '-', chunk.last_block, ' ');
  for (const program::Cut& cut : program.cuts)
    out += text(cut.first_block, ':', cut.micro_batch_size, '/', cut.tp_size, '/', cut.expert_size, ' ');
  return out;
}

// "12 steps", in words of the log.
std::string steps_text(std::int64_t steps) { return text(steps, steps == 1 ? " step" : " steps"); }

}  // namespace

std::string work_of(const program::Instruction& instruction) {
  std::string out = program::name_of(instruction.op);
  if (instruction.bucket >= 0) out += text(" of bucket ", instruction.bucket);
  if (instruction.first_block < 0) return out;
  if (instruction.last_block - instruction.first_block == 1) return out + text(" of block ", instruction.first_block);
  return out + text(" of blocks ", instruction.first_block, " to ", instruction.last_block - 1);
}

std::map<Connection, Seconds> exchanges_of(const std::vector<program::Program>& programs, const program::TracedStep& step) {
  const auto transfers = program::transfers_of(step);
  std::map<std::string, std::set<int>> members;
  for (const auto& [rank, of] : step)
    for (const auto& [index, instruction] : of.instructions)
      if (!instruction.group.empty() && !program::is_compute(instruction.op)) members[instruction.group].insert(rank);
  std::map<Connection, Seconds> out;
  std::map<Connection, std::optional<Seconds>> in_passes;
  for (const auto& [rank, of] : step) {
    Seconds own(0);
    std::map<std::string, Seconds> of_group;
    for (const auto& [index, instruction] : of.instructions) {
      for (const program::Interval& exchange : instruction.exchanges) own += exchange.end - exchange.begin;
      const auto transfer = transfers.find({rank, index});
      if (transfer == transfers.end()) continue;
      const Seconds seconds = transfer->second.end - transfer->second.begin;
      if (instruction.op == program::Op::receive_activation || instruction.op == program::Op::receive_gradient) {
        out[{{instruction.peer, rank}, {}}] += seconds;
      } else if (!instruction.group.empty()) {
        of_group[instruction.group] += seconds;
      }
    }
    for (const auto& [group, seconds] : of_group) {
      const std::set<int>& ranks = members[group];
      Seconds& longest = out[{{ranks.begin(), ranks.end()}, group}];
      longest = std::max(longest, seconds);
    }
    const program::Program& program = programs.at(static_cast<std::size_t>(rank));
    if (program.cuts.empty() || program.cuts.front().tensor_group < 0) continue;
    const program::CommGroup& group = program.groups.at(static_cast<std::size_t>(program.cuts.front().tensor_group));
    auto& least = in_passes[{group.ranks, group.name + " in passes"}];
    least = least ? std::min(*least, own) : own;
  }
  for (const auto& [connection, seconds] : in_passes) out[connection] = *seconds;
  return out;
}

SpeedWatch::SpeedWatch(const std::vector<program::Program>& programs, std::vector<std::string> hosts)
    : hosts_(std::move(hosts)), one_host_(std::set<std::string>(hosts_.begin(), hosts_.end()).size() < 2), ranks_(programs.size()) {
  std::map<std::string, std::vector<int>> of_duties;
  for (std::size_t rank = 0; rank < programs.size(); ++rank) of_duties[duties_of(programs[rank])].push_back(static_cast<int>(rank));
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    std::vector<int> others = of_duties[duties_of(programs[rank])];
    std::erase(others, static_cast<int>(rank));
    peers_.push_back(std::move(others));
  }
}

// `counts`: whether it is worth being named.
SpeedWatch::Turn SpeedWatch::judge(Finding& finding, double ratio, double slow, double well, bool counts, int running) const {
  finding.beyond = ratio > slow && counts ? finding.beyond + 1 : 0;
  finding.within = ratio < well || !counts ? finding.within + 1 : 0;
  if (!finding.named && finding.beyond >= running) {
    finding.named = true;
    finding.since = steps_;
    return Turn::named;
  }
  if (finding.named && finding.within >= kRunning) {
    finding.named = false;
    return Turn::over;
  }
  return Turn::none;
}

std::string SpeedWatch::name_of(int rank) const {
  return text("rank ", rank, one_host_ ? "" : text(" on host ", hosts_.at(static_cast<std::size_t>(rank))));
}

void SpeedWatch::judge_rank(int rank, const SpeedWindow& window, std::vector<SpeedChange>& changes) {
  const auto at = static_cast<std::size_t>(rank);
  Subject& subject = ranks_[at];
  const Computing& own = window.computing.at(at);
  std::vector<Computing> others;
  for (const int peer : peers_[at]) others.push_back(window.computing.at(static_cast<std::size_t>(peer)));
  if (others.empty() && subject.first_works.size() < kBeginning) return;
  const char* than = others.empty() ? "at the run's beginning" : others.size() == 1 ? "its peer" : "its peers";
  if (others.empty()) others = subject.first_works;
  const Seconds usual = median_of(others);
  const double ratio = usual > Seconds(0) ? whole(own) / usual : 1;
  const Seconds cost = std::min(whole(own) - usual, window.step);
  subject.cost = cost;
  switch (judge(subject.slow, ratio, kSlow, kWell, cost > window.step * kWorth, kRunning)) {
    case Turn::none: return;
    case Turn::named:
      changes.push_back(
          {true,
           text(name_of(rank), " computes ", fixed(ratio, 1), " x as long as ", than, ", above all in ", slowest_work(own, others), ": ",
                to_text(cost), " of a step of ", to_text(window.step), " are spent waiting for it"),
           rank, ratio});
      return;
    case Turn::over:
      changes.push_back(
          {false, text(name_of(rank), " computes as long as ", than, " again, after ", steps_text(steps_ - subject.slow.since)), rank, 1});
  }
}

// 1 until the beginning is known.
double SpeedWatch::beside_beginning(std::size_t rank, const SpeedWindow& window) const {
  const std::vector<Computing>& first = ranks_[rank].first_works;
  const Seconds usual = first.size() < kBeginning ? Seconds(0) : median_of(first);
  return usual > Seconds(0) ? whole(window.computing.at(rank)) / usual : 1;
}

void SpeedWatch::judge_fast(int rank, const SpeedWindow& window, std::vector<SpeedChange>& changes) {
  const auto at = static_cast<std::size_t>(rank);
  Subject& subject = ranks_[at];
  const double own = beside_beginning(at, window);
  double others = 1 / own;  // of the others, what the fastest has become
  for (std::size_t other = 0; other < ranks_.size(); ++other)
    if (other != at) others = std::min(others, beside_beginning(other, window) / own);
  const Seconds saved = whole(window.computing.at(at)) * (1 / own - 1);
  switch (judge(subject.fast, others, kSlow, kWell, saved > window.step * kWorth && !subject.slow.named, kRunning)) {
    case Turn::none: return;
    case Turn::named:
      changes.push_back(
          {false, text(name_of(rank), " computes in ", fixed(own, 2), " of the time that it took at the run's beginning"), rank, own});
      return;
    case Turn::over: changes.push_back({false, text(name_of(rank), " takes its time of the run's beginning again"), rank, 1});
  }
}

void SpeedWatch::judge_exchange(const Connection& connection, Seconds seconds, const SpeedWindow& window,
                                std::vector<SpeedChange>& changes) {
  Subject& subject = exchanges_[connection];
  Seconds late(0);  // what a slow rank may be late in its exchanges, too
  for (const int rank : connection.ranks) {
    const Subject& of = ranks_.at(static_cast<std::size_t>(rank));
    if (of.slow.named || of.slow.beyond > 0) late = std::max(late, of.cost);
  }
  if (subject.first.size() < kBeginning) return subject.first.push_back(seconds);
  const Seconds usual = median(subject.first);
  const Seconds cost = seconds - usual;
  if (late > Seconds(0) && cost < late * 2) {
    subject.slow.beyond = 0;
    return;
  }
  const double ratio = usual > Seconds(0) ? seconds / usual : cost > Seconds(0) ? kDrifted + 1 : 1;
  const Turn turn = judge(subject.slow, ratio, kDrifted, kDrifted, cost > window.step * kWorth, kRunningExchange);
  if (turn == Turn::none) return;
  std::string who;
  if (connection.group.empty()) {
    who = text("messages from ", name_of(connection.ranks[0]), " to ", name_of(connection.ranks[1]));
  } else {
    for (const int rank : connection.ranks) who += text(who.empty() ? "" : ", ", name_of(rank));
    who = text("exchanges over ", connection.group, " (", who, ")");
  }
  std::set<std::string> hosts;
  for (const int rank : connection.ranks) hosts.insert(hosts_.at(static_cast<std::size_t>(rank)));
  SpeedChange& change = changes.emplace_back();
  change.between_hosts = hosts.size() > 1;
  change.warns = turn == Turn::named;
  change.words = change.warns ? text(who, " take ", fixed(ratio, 1), " x as long as at the run's beginning: ", to_text(cost),
                                     " more in a step of ", to_text(window.step))
                              : text(who, " take as long as at the run's beginning again, after ", steps_text(steps_ - subject.slow.since));
}

std::vector<SpeedChange> SpeedWatch::add(const SpeedWindow& window) {
  steps_ += window.steps;
  std::vector<SpeedChange> changes;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    judge_rank(static_cast<int>(rank), window, changes);
    judge_fast(static_cast<int>(rank), window, changes);
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
    if (ranks_[rank].first_works.size() < kBeginning) ranks_[rank].first_works.push_back(window.computing.at(rank));
  for (const auto& [connection, seconds] : window.exchanges) judge_exchange(connection, seconds, window, changes);
  return changes;
}

}  // namespace tessera::train
