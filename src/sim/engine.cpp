#include "sim/engine.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "program/streams.hpp"

namespace tessera::sim {
namespace {

using program::Connection;
using program::Instruction;
using program::Op;
using program::Program;
using program::Stream;

// Rounding leaves this share of a task undone.
constexpr double kDone = 1e-12;

// Something that takes time now: the heads of one or more streams.
struct Task {
  double total = 0;
  double left = 0;
  double begin = 0;
  double rate = 1;
  std::vector<Use> uses;
  std::vector<int> streams;
  std::optional<Transfer> then;  // computing: the exposed communication that follows
  double exposed_from = -1;      // when that began
  int transfer_id = -1;          // Transfer::id
  bool computing = false;
  double recompute = 0;  // computing: the share that is a repeated forward pass
  bool beside = false;   // it and the computation of its ranks slow each other down
  double slowed = 1;
};

// How far a program has come.
struct Progress {
  program::MemoryBudget budget;
  std::vector<bool> done;  // by instruction
  int beside = 0;          // tasks under way for which Task::beside holds
  double slows = 1;        // how many times longer computing takes beside them
  bool computing = false;
  std::int64_t communicating = 0;  // the last event before which it communicated and did not compute
  bool dirty = false;              // something of it has ended: what waits for that may start
  double first_pass = -1;          // when it began; -1 before
  Bytes activations = {};
  int in_flight = 0;  // micro-batches times chunks
};

class Engine {
 public:
  Engine(const std::vector<Program>& programs, const std::function<int(int)>& program_of, Costs& costs)
      : programs_(programs),
        costs_(costs),
        streams_(program::streams_of(programs, program_of)),
        head_(streams_.streams.size(), 0),
        running_(streams_.streams.size(), false) {
    result_.ranks.resize(programs.size());
    for (int p = 0; p < std::ssize(programs); ++p) {
      progress_.push_back({costs.memory(p), std::vector<bool>(programs[p].instructions.size(), false)});
      remember(p);
      touch(p);
    }
  }

  Result run() {
    for (start_what_can(); !tasks_.empty(); start_what_can()) advance();
    for (std::size_t p = 0; p < programs_.size(); ++p)
      for (std::size_t i = 0; i < progress_[p].done.size(); ++i)
        if (!progress_[p].done[i])
          throw Error(ErrorCode::internal,
                      text("the programs wait for each other: instruction ", i, " (", program::name_of(programs_[p].instructions[i].op),
                           ") never starts"),
                      {{}, 0, 0, programs_[p].rank, {}});
    return finish();
  }

 private:
  int program(int stream) const { return streams_.streams[stream].program; }
  int index(int stream) const { return streams_.streams[stream].instructions[head_[stream]]; }
  const Instruction& at(int stream) const { return programs_[program(stream)].instructions[index(stream)]; }

  bool ready(int stream) const {
    if (running_[stream] || head_[stream] == streams_.streams[stream].instructions.size()) return false;
    const auto& after = at(stream).after;
    const auto& done = progress_[program(stream)].done;
    return std::ranges::all_of(after, [&](int dependency) { return done[dependency]; });
  }

  void touch(int program) {
    if (!std::exchange(progress_[program].dirty, true)) dirty_.push_back(program);
  }

  void start_what_can() {
    std::sort(dirty_.begin(), dirty_.end());
    for (const int program : dirty_) {
      progress_[program].dirty = false;
      for (const int stream : streams_.of_program[program]) try_start(stream);
    }
    dirty_.clear();
    set_rates();
  }

  void try_start(int stream) {
    if (!ready(stream)) return;
    const int connection = streams_.streams[stream].connection;
    if (connection < 0) return start_compute(stream);
    const Connection& of = streams_.connections[connection];
    if (static_cast<int>(of.streams.size()) < of.expected) return;
    if (of.streams.size() == 1 || std::ranges::all_of(of.streams, [&](int other) { return ready(other); })) start_transfer(of);
  }

  void start_transfer(const Connection& connection) {
    int first = connection.streams.front();
    for (const int stream : connection.streams)
      if (streams_.streams[stream].sends) first = stream;
    Task task;
    const bool collective = connection.kind == Connection::Kind::collective;
    const bool rows = program::is_of_rows(at(first).op);
    task.beside = collective || rows;
    Transfer transfer;
    if (connection.kind == Connection::Kind::message) transfer = costs_.message(program(first), at(first));
    if (collective) transfer = costs_.collective(program(first), at(first));
    if (rows) transfer = costs_.rows(program(first), at(first));
    task.streams = connection.streams;
    task.uses = std::move(transfer.uses);
    task.transfer_id = transfer.id;
    task.slowed = transfer.slowed;
    if (task.beside)
      for (const int stream : task.streams) {
        double& slows = progress_[program(stream)].slows;
        slows = std::max(slows, transfer.slows);
      }
    begin(std::move(task), transfer.seconds);
  }

  void start_compute(int stream) {
    const int p = program(stream);
    Progress& progress = progress_[p];
    const Instruction& instruction = at(stream);
    Compute compute = costs_.compute(p, instruction);
    Task task;
    task.streams = {stream};
    task.computing = true;
    task.transfer_id = compute.exposed.id;
    if (compute.seconds > 0) task.recompute = compute.recompute / compute.seconds;
    if (compute.exposed.seconds > 0) task.then = std::move(compute.exposed);
    if (instruction.op != Op::optimizer_step && progress.first_pass < 0) progress.first_pass = now_;
    if (instruction.op == Op::forward && programs_[p].training) hold(p, instruction, 1);
    begin(std::move(task), compute.seconds);
  }

  void begin(Task task, double seconds) {
    task.total = task.left = seconds;
    task.begin = now_;
    for (const int stream : task.streams) {
      running_[stream] = true;
      if (task.beside) ++progress_[program(stream)].beside;
      if (task.computing) progress_[program(stream)].computing = true;
    }
    load(task, 1);
    tasks_.push_back(std::move(task));
  }

  // Adds (or takes away) a transfer's share of what it uses.
  void load(const Task& task, int sign) {
    if (task.computing) return;
    for (const Use& use : task.uses) {
      if (use.resource >= static_cast<int>(users_.size())) users_.resize(use.resource + 1, 0);
      if (task.transfer_id >= 0) {
        int& members = members_[{use.resource, task.transfer_id}];
        members += sign;
        if (members != (sign > 0 ? 1 : 0)) continue;
      }
      users_[use.resource] += sign * use.load;
    }
  }

  void set_rates() {
    for (Task& task : tasks_) {
      double sharing = 1;
      if (!task.computing)
        for (const Use& use : task.uses) sharing = std::max(sharing, users_[use.resource]);
      task.rate = task.computing ? 1.0 / progress_[program(task.streams.front())].slows : 1.0 / sharing;
      const auto computes = [&](int stream) { return progress_[program(stream)].computing; };
      if (task.beside && task.slowed > 1 && std::ranges::any_of(task.streams, computes)) task.rate /= task.slowed;
    }
  }

  void advance() {
    double step = std::numeric_limits<double>::infinity();
    for (const Task& task : tasks_) step = std::min(step, task.left / task.rate);
    now_ += step;
    std::vector<Task> ended;
    std::size_t kept = 0;
    ++event_;
    for (Task& task : tasks_) {
      count(task, step);
      task.left -= step * task.rate;
      if (task.left <= kDone * task.total) {
        ended.push_back(std::move(task));
      } else {
        if (&tasks_[kept] != &task) tasks_[kept] = std::move(task);
        ++kept;
      }
    }
    tasks_.resize(kept);
    for (Task& task : ended) end(std::move(task));
  }

  // Whose time it is, and what it is spent on.
  void count(const Task& task, double step) {
    if (task.computing) return count_computing(task, step);
    for (const int stream : task.streams) {
      Progress& progress = progress_[program(stream)];
      if (progress.computing || std::exchange(progress.communicating, event_) == event_) continue;
      RankResult& rank = result_.ranks[program(stream)];
      rank.exposed += Seconds(step);
      const Op op = at(stream).op;
      (program::is_compute(op)                                       ? rank.spent.in_passes
       : op == Op::gather_parameters                                 ? rank.spent.parameters
       : program::is_of_rows(op)                                     ? rank.spent.rows
       : program::is_message(op) || program::is_gather_of_inputs(op) ? rank.spent.messages
                                                                     : rank.spent.gradients) += Seconds(step);
    }
  }

  void count_computing(const Task& task, double step) {
    RankResult& rank = result_.ranks[program(task.streams.front())];
    rank.busy += Seconds(step);
    const Op op = at(task.streams.front()).op;
    if (op == Op::optimizer_step) {
      rank.spent.optimizer += Seconds(step);
    } else if (op == Op::forward) {
      rank.spent.forward += Seconds(step);
    } else {
      rank.spent.recompute += Seconds(step * task.recompute);
      rank.spent.backward += Seconds(step * (1 - task.recompute));
    }
  }

  void end(Task task) {
    load(task, -1);
    if (task.computing) progress_[program(task.streams.front())].computing = false;
    if (task.computing && task.then) {
      // The same instruction goes on as exposed communication.
      task.total = task.left = task.then->seconds;
      task.uses = std::move(task.then->uses);
      task.then.reset();
      task.computing = false;
      task.exposed_from = now_;
      load(task, 1);
      tasks_.push_back(std::move(task));
      return;
    }
    for (const int stream : task.streams) {
      const int p = program(stream);
      if (task.beside && --progress_[p].beside == 0) progress_[p].slows = 1;
      if (streams_.streams[stream].connection < 0) end_compute(p, at(stream));
      result_.spans.push_back({programs_[p].rank, index(stream), Seconds(task.begin), Seconds(now_),
                               Seconds(task.exposed_from < 0 ? 0 : now_ - task.exposed_from)});
      progress_[p].done[index(stream)] = true;
      running_[stream] = false;
      ++head_[stream];
      touch(p);
    }
  }

  void end_compute(int p, const Instruction& instruction) {
    if (instruction.op == Op::optimizer_step) return;
    result_.ranks[p].passes = Seconds(now_ - progress_[p].first_pass);
    if (instruction.op != Op::forward) hold(p, instruction, instruction.op == Op::backward_input ? 0 : -1);
  }

  // Passes of a chunk's first block begin and end to hold its activations.
  void hold(int p, const Instruction& pass, int micro_batches) {
    const int chunk = programs_[p].chunk_of(pass.first_block);
    if (pass.first_block != programs_[p].chunks[chunk].first_block) return;
    progress_[p].activations += Bytes(change_of(progress_[p].budget.chunks[chunk], pass.op));
    progress_[p].in_flight += micro_batches;
    remember(p);
  }

  void remember(int p) {
    const Progress& of = progress_[p];
    const Bytes now = of.budget.fixed + of.activations + (of.in_flight > 0 ? of.budget.workspace : Bytes());
    result_.memory.push_back({programs_[p].rank, Seconds(now_), now});
    result_.ranks[p].peak_memory = std::max(result_.ranks[p].peak_memory, now);
  }

  Result finish() {
    result_.step = Seconds(now_);
    for (RankResult& rank : result_.ranks) rank.idle = std::max(Seconds(0), result_.step - rank.busy - rank.exposed);
    std::sort(result_.spans.begin(), result_.spans.end(), [](const Span& a, const Span& b) {
      return std::tuple(a.begin, a.rank, a.instruction) < std::tuple(b.begin, b.rank, b.instruction);
    });
    return std::move(result_);
  }

  const std::vector<Program>& programs_;
  Costs& costs_;
  program::Streams streams_;
  double now_ = 0;
  std::vector<Task> tasks_;
  std::vector<std::size_t> head_;   // by stream
  std::vector<bool> running_;       // by stream: its head
  std::vector<Progress> progress_;  // by program
  std::int64_t event_ = 0;
  std::vector<double> users_;                   // by resource
  std::map<std::pair<int, int>, int> members_;  // of a transfer that has several parts, by resource and transfer id
  std::vector<int> dirty_;                      // programs
  Result result_;
};

// The shares of the step that all ranks together compute and communicate, and that the one with the longest passes stands idle.
void add_shares(Result& result, const std::vector<Program>& programs, const std::vector<int>& program_of) {
  const double whole = result.step.value * static_cast<double>(result.ranks.size());
  for (const RankResult& rank : result.ranks) {
    if (whole <= 0) break;
    result.utilization += rank.busy.value / whole;
    result.exposed += rank.exposed.value / whole;
  }
  result.bubble = whole > 0 ? std::clamp(1 - result.utilization - result.exposed, 0.0, 1.0) : 0;
  std::vector<double> passing(programs.size(), 0);
  for (const Span& span : result.spans) {
    const int program = program_of[span.rank];
    const Op op = programs[program].instructions[span.instruction].op;
    if (is_compute(op) && op != Op::optimizer_step) passing[program] += span.end.value - span.begin.value;
  }
  double longest = 0;
  for (std::size_t r = 0; r < result.ranks.size(); ++r) {
    if (result.ranks[r].passes.value <= longest) continue;
    longest = result.ranks[r].passes.value;
    result.pipeline_bubble = std::max(0.0, 1 - passing[program_of[r]] / longest);
  }
}

constexpr Seconds Spent::*kSpent[] = {&Spent::forward,  &Spent::backward,  &Spent::recompute,  &Spent::optimizer, &Spent::in_passes,
                                      &Spent::messages, &Spent::gradients, &Spent::parameters, &Spent::rows};

// Steps in a row after which one is like the next: the first has nothing to finish.
constexpr int kSettled = 4;

// The last of several steps in a row of programs of which one step waits for the one before: what it adds to those before it.
Result run_settled(const std::vector<Program>& programs, const std::function<int(int)>& program_of, Costs& costs) {
  const Result before = Engine(program::unrolled(programs, kSettled - 1), program_of, costs).run();
  Result out = Engine(program::unrolled(programs, kSettled), program_of, costs).run();
  for (Span& span : out.spans) span.instruction -= (kSettled - 1) * static_cast<int>(programs[program_of(span.rank)].instructions.size());
  // The clock starts with the step's first pass.
  std::erase_if(out.spans, [](const Span& span) { return span.instruction < 0; });
  const Seconds begin = out.spans.empty() ? Seconds(0) : out.spans.front().begin;
  for (Span& span : out.spans) span = {span.rank, span.instruction, span.begin - begin, span.end - begin, span.exposed};
  std::erase_if(out.memory, [&](const MemoryPoint& point) { return point.time < begin; });
  for (MemoryPoint& point : out.memory) point.time -= begin;
  out.step -= before.step;
  for (std::size_t r = 0; r < out.ranks.size(); ++r) {
    RankResult& rank = out.ranks[r];
    rank.busy -= before.ranks[r].busy;
    rank.exposed -= before.ranks[r].exposed;
    for (Seconds Spent::*part : kSpent) rank.spent.*part -= before.ranks[r].spent.*part;
    rank.idle = std::max(Seconds(0), out.step - rank.busy - rank.exposed);
    std::optional<Seconds> first;
    Seconds last;
    for (const Span& span : out.spans) {
      if (span.rank != programs[r].rank) continue;
      const Op op = programs[r].instructions[span.instruction].op;
      if (!is_compute(op) || op == Op::optimizer_step) continue;
      first = first.value_or(span.begin);
      last = std::max(last, span.end);
    }
    rank.passes = last - first.value_or(Seconds(0));
  }
  return out;
}

}  // namespace

Result run_programs(const std::vector<Program>& programs, const std::vector<int>& program_of, Costs& costs) {
  const std::function<int(int)> stands_for = [&](int rank) { return program_of[rank]; };
  const bool crossing = std::ranges::any_of(programs, &Program::crosses_steps);
  Result result = crossing ? run_settled(programs, stands_for, costs) : Engine(programs, stands_for, costs).run();
  std::vector<RankResult> ranks;
  for (const int program : program_of) ranks.push_back(result.ranks[program]);
  result.ranks = std::move(ranks);
  add_shares(result, programs, program_of);
  return result;
}

}  // namespace tessera::sim
