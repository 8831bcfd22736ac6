#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "sim/sim.hpp"
#include "sim/work.hpp"

namespace tessera::sim {
namespace {

using program::Instruction;
using program::Op;
using program::Program;

// Rounding leaves this share of a task undone.
constexpr double kDone = 1e-12;

bool is_message(Op op) {
  return op == Op::send_activation || op == Op::receive_activation || op == Op::send_gradient || op == Op::receive_gradient;
}
bool is_send(Op op) { return op == Op::send_activation || op == Op::send_gradient; }
bool is_activation(Op op) { return op == Op::send_activation || op == Op::receive_activation; }

// Messages between two ranks in one direction of the model, or the collectives of a group: one at a time, in order.
struct ChannelKey {
  int from = -1;
  int to = -1;
  bool activation = false;
  std::vector<int> group;
  std::string name;
  auto operator<=>(const ChannelKey&) const = default;
};

struct Part {
  int rank = 0;
  int instruction = 0;
};

struct Channel {
  std::map<int, std::deque<Part>> queues;  // by rank, in program order
  std::size_t members = 2;
  bool busy = false;
};

// Something that takes time now.
struct Task {
  double total = 0;
  double left = 0;
  double begin = 0;
  std::vector<Resource> resources;  // transfers
  std::vector<Part> parts;          // one for computing, all members for a transfer
  Channel* channel = nullptr;       // communication beside computation
  std::optional<Transfer> then;     // computing: the exchange that follows
  int together = -1;                // tasks of equal number are one transfer, seen by each of its members
  bool computing = false;
  bool collective = false;          // slows the computation of its ranks down
  double rate = 1;
};

class Engine {
 public:
  Engine(const std::vector<Program>& programs, const plan::Plan& plan, plan::Prices& prices)
      : programs_(programs), work_(programs, plan, prices), slowdown_(std::max(1.0, prices.profile().overlap_slowdown)), rank_count_(programs.size()) {
    done_.resize(rank_count_);
    next_compute_.assign(rank_count_, 0);
    computing_.assign(rank_count_, false);
    collectives_.assign(rank_count_, 0);
    busy_.assign(rank_count_, 0);
    held_.assign(rank_count_, 0);
    for (std::size_t r = 0; r < rank_count_; ++r) {
      memory_.push_back(work_.memory(static_cast<int>(r)));
      result_.ranks.push_back({});
      done_[r].assign(programs[r].instructions.size(), false);
      for (std::size_t i = 0; i < programs[r].instructions.size(); ++i) enqueue(static_cast<int>(r), static_cast<int>(i));
      skip_to_compute(static_cast<int>(r));
      remember(static_cast<int>(r));
    }
  }

  Result run() {
    start_what_can();
    while (!tasks_.empty()) {
      advance();
      start_what_can();
    }
    for (std::size_t r = 0; r < rank_count_; ++r)
      for (std::size_t i = 0; i < done_[r].size(); ++i)
        if (!done_[r][i])
          throw Error(ErrorCode::internal, text("the programs wait for each other: instruction ", i, " (", program::name_of(programs_[r].instructions[i].op), ") never starts"),
                      {{}, 0, 0, static_cast<int>(r), {}});
    return finish();
  }

 private:
  const Instruction& at(const Part& part) const { return programs_[part.rank].instructions[part.instruction]; }

  void enqueue(int rank, int index) {
    const Instruction& instruction = programs_[rank].instructions[index];
    if (program::is_compute(instruction.op)) return;
    ChannelKey key;
    std::size_t members = 2;
    if (is_message(instruction.op)) {
      key.from = is_send(instruction.op) ? rank : instruction.peer;
      key.to = is_send(instruction.op) ? instruction.peer : rank;
      key.activation = is_activation(instruction.op);
    } else if (instruction.group >= 0) {
      key.group = programs_[rank].groups[instruction.group].ranks;
      key.name = programs_[rank].groups[instruction.group].name;
      members = key.group.size();
    } else {
      // Alone: nothing to wait for but its dependencies.
      key.group = {rank};
      key.name = text("alone ", index);
      members = 1;
    }
    Channel& channel = channels_[key];
    channel.members = members;
    channel.queues[rank].push_back({rank, index});
  }

  bool ready(const Part& part) const {
    const auto& after = at(part).after;
    return std::all_of(after.begin(), after.end(), [&](int dependency) { return done_[part.rank][dependency]; });
  }

  void skip_to_compute(int rank) {
    const auto& instructions = programs_[rank].instructions;
    while (next_compute_[rank] < static_cast<int>(instructions.size()) && !program::is_compute(instructions[next_compute_[rank]].op)) ++next_compute_[rank];
  }

  void start_what_can() {
    for (auto& [key, channel] : channels_)
      if (!channel.busy) try_start(key, channel);
    for (std::size_t r = 0; r < rank_count_; ++r) {
      const int rank = static_cast<int>(r);
      const Part part{rank, next_compute_[r]};
      if (computing_[r] || part.instruction >= static_cast<int>(programs_[r].instructions.size()) || !ready(part)) continue;
      start_compute(part);
    }
    set_rates();
  }

  void try_start(const ChannelKey& key, Channel& channel) {
    if (channel.queues.size() < channel.members) return;
    for (const auto& [rank, queue] : channel.queues)
      if (queue.empty() || !ready(queue.front())) return;
    Task task;
    for (auto& [rank, queue] : channel.queues) {
      task.parts.push_back(queue.front());
      queue.pop_front();
    }
    const Instruction& first = at(task.parts.front());
    const Transfer transfer = key.from >= 0 ? work_.message(key.from, key.to, first.bytes.value) : work_.collective(first, key.group);
    task.total = task.left = transfer.seconds;
    task.resources = transfer.resources;
    task.begin = now_;
    task.channel = &channel;
    task.collective = key.from < 0;
    channel.busy = true;
    if (task.collective)
      for (const Part& part : task.parts) ++collectives_[part.rank];
    tasks_.push_back(std::move(task));
  }

  void start_compute(const Part& part) {
    const Compute compute = work_.compute(part.rank, at(part));
    Task task;
    task.total = task.left = compute.seconds;
    task.begin = now_;
    task.parts = {part};
    task.computing = true;
    if (compute.exchange.seconds > 0) task.then = compute.exchange;
    computing_[part.rank] = true;
    if (at(part).op == Op::forward && programs_[part.rank].training) {
      ++held_[part.rank];
      remember(part.rank);
    }
    tasks_.push_back(std::move(task));
  }

  void set_rates() {
    std::map<Resource, int> users;
    std::set<std::pair<Resource, int>> counted;
    for (const Task& task : tasks_)
      for (const Resource& resource : task.resources)
        if (task.together < 0 || counted.insert({resource, task.together}).second) ++users[resource];
    for (Task& task : tasks_) {
      int sharing = 1;
      for (const Resource& resource : task.resources) sharing = std::max(sharing, users[resource]);
      task.rate = 1.0 / sharing;
      if (task.computing && collectives_[task.parts.front().rank] > 0) task.rate = 1.0 / slowdown_;
    }
  }

  void advance() {
    double step = std::numeric_limits<double>::infinity();
    for (const Task& task : tasks_) step = std::min(step, task.left / task.rate);
    now_ += step;
    std::vector<Task> still;
    std::vector<Task> ended;
    for (Task& task : tasks_) {
      if (task.computing) busy_[task.parts.front().rank] += step;
      task.left -= step * task.rate;
      (task.left <= kDone * task.total ? ended : still).push_back(std::move(task));
    }
    tasks_ = std::move(still);
    for (Task& task : ended) end(std::move(task));
  }

  void end(Task task) {
    if (task.computing && task.then) {
      // The same instruction goes on as an exchange.
      task.total = task.left = task.then->seconds;
      task.resources = task.then->resources;
      const Program& program = programs_[task.parts.front().rank];
      task.together = program.groups[program.tensor_group].ranks.front();
      task.computing = false;
      task.then.reset();
      tasks_.push_back(std::move(task));
      return;
    }
    for (const Part& part : task.parts) {
      done_[part.rank][part.instruction] = true;
      result_.spans.push_back({part.rank, part.instruction, Seconds(task.begin), Seconds(now_)});
      if (task.collective) --collectives_[part.rank];
    }
    if (task.channel != nullptr) {
      task.channel->busy = false;
      return;
    }
    const Part part = task.parts.front();
    computing_[part.rank] = false;
    const Instruction& instruction = at(part);
    if (instruction.op == Op::backward && instruction.first_block == programs_[part.rank].first_block) {
      --held_[part.rank];
      remember(part.rank);
    }
    ++next_compute_[part.rank];
    skip_to_compute(part.rank);
  }

  void remember(int rank) {
    const plan::StageBytes& bytes = memory_[rank];
    const Bytes now(bytes.fixed + held_[rank] * bytes.saved + (held_[rank] > 0 ? bytes.workspace : 0));
    result_.memory.push_back({rank, Seconds(now_), now});
    result_.ranks[rank].peak_memory = std::max(result_.ranks[rank].peak_memory, now);
  }

  Result finish() {
    result_.step = Seconds(now_);
    double busy = 0;
    for (std::size_t r = 0; r < rank_count_; ++r) {
      result_.ranks[r].busy = Seconds(busy_[r]);
      result_.ranks[r].exposed = Seconds(now_ - busy_[r]);
      busy += busy_[r];
    }
    result_.bubble = now_ > 0 ? std::clamp(1 - busy / (now_ * static_cast<double>(rank_count_)), 0.0, 1.0) : 0;
    std::sort(result_.spans.begin(), result_.spans.end(), [](const Span& a, const Span& b) {
      return std::tuple(a.begin, a.rank, a.instruction) < std::tuple(b.begin, b.rank, b.instruction);
    });
    return std::move(result_);
  }

  const std::vector<Program>& programs_;
  Work work_;
  double slowdown_;
  std::size_t rank_count_;
  double now_ = 0;
  std::map<ChannelKey, Channel> channels_;
  std::vector<Task> tasks_;
  std::vector<std::vector<bool>> done_;
  std::vector<int> next_compute_;
  std::vector<bool> computing_;
  std::vector<int> collectives_;
  std::vector<double> busy_;
  std::vector<std::int64_t> held_;
  std::vector<plan::StageBytes> memory_;
  Result result_;
};

}  // namespace

Result run(const std::vector<Program>& programs, const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train,
           const cluster::ClusterSpec& cluster, const profile::Profile& profile) {
  plan::Prices prices(model, train, cluster, profile);
  return Engine(programs, plan, prices).run();
}

}  // namespace tessera::sim
