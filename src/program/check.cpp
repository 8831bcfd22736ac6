#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "program/program.hpp"

namespace tessera::program {
namespace {

std::string label(const Program& program, int index) {
  const Instruction& instruction = program.instructions[index];
  std::string out = text("rank ", program.rank, " instruction ", index, " (", name_of(instruction.op));
  if (instruction.micro_batch >= 0) out += text(" of micro-batch ", instruction.micro_batch);
  if (instruction.bucket >= 0) out += text(" of bucket ", instruction.bucket);
  return out + ")";
}

[[noreturn]] void refuse(const Program& program, int index, const std::string& why) {
  throw Error(ErrorCode::invalid_config, label(program, index) + ": " + why, {{}, 0, 0, program.rank, {}});
}

// Each micro-batch passes every block forward once, then backward once from the last block down; dependencies point back.
void check_compute(const Program& program) {
  std::map<int, int> forwarded;   // micro-batch -> blocks forwarded so far, up to
  std::map<int, int> backwarded;  // micro-batch -> blocks backwarded so far, down to
  std::set<int> stepped;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    const int index = static_cast<int>(i);
    for (int dependency : instruction.after)
      if (dependency < 0 || dependency >= index) refuse(program, index, text("depends on instruction ", dependency, ", which does not come before it"));
    const int m = instruction.micro_batch;
    if (instruction.op == Op::forward) {
      const int expected = forwarded.contains(m) ? forwarded[m] : program.first_block;
      if (instruction.first_block != expected) refuse(program, index, text("starts at block ", instruction.first_block, "; expected ", expected));
      forwarded[m] = instruction.last_block;
    } else if (instruction.op == Op::backward || instruction.op == Op::backward_input) {
      if (!forwarded.contains(m) || forwarded[m] != program.last_block) refuse(program, index, "comes before the forward pass is complete");
      const int expected = backwarded.contains(m) ? backwarded[m] : program.last_block;
      if (instruction.last_block != expected) refuse(program, index, text("ends at block ", instruction.last_block, "; expected ", expected));
      backwarded[m] = instruction.first_block;
    } else if (instruction.op == Op::optimizer_step) {
      if (!stepped.insert(instruction.bucket).second) refuse(program, index, "steps its bucket a second time");
    }
  }
  const int last = static_cast<int>(program.instructions.size()) - 1;
  for (int m = 0; m < program.micro_batches; ++m) {
    const bool forward = forwarded.contains(m) && forwarded[m] == program.last_block;
    const bool backward = backwarded.contains(m) && backwarded[m] == program.first_block;
    if (!forward || (program.training && !backward)) refuse(program, last, text("micro-batch ", m, " does not pass all blocks"));
  }
  if (static_cast<int>(forwarded.size()) != program.micro_batches) refuse(program, last, "works on more micro-batches than the step has");
  if (program.training && stepped.size() != program.buckets.size()) refuse(program, last, "does not step every bucket");
}

// What must meet: a point-to-point message (from, to, op of the sender) or a group's collective, each a queue in order.
using Channel = std::tuple<int, int, Op, std::string>;

struct Arrival {
  int rank;
  int instruction;
};

// Runs all programs without time. Sends complete only together with their receives (no buffering), so a program that
// passes cannot deadlock on any transport.
class Runner {
 public:
  explicit Runner(const std::vector<Program>& programs) : programs_(programs), done_(programs.size()), started_(programs.size()), first_open_(programs.size(), 0), next_compute_(programs.size(), 0) {
    for (std::size_t r = 0; r < programs.size(); ++r) {
      done_[r].assign(programs[r].instructions.size(), false);
      started_[r].assign(programs[r].instructions.size(), false);
    }
  }

  void run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t r = 0; r < programs_.size(); ++r) moved |= advance(static_cast<int>(r));
      moved |= match();
    }
    for (std::size_t r = 0; r < programs_.size(); ++r)
      for (std::size_t i = 0; i < done_[r].size(); ++i)
        if (!done_[r][i]) refuse(programs_[r], static_cast<int>(i), "never completes: the ranks wait for each other, or a peer never sends or joins");
  }

 private:
  bool ready(int rank, int index) const {
    for (int dependency : programs_[rank].instructions[index].after)
      if (!done_[rank][dependency]) return false;
    return true;
  }

  Channel channel_of(int rank, const Instruction& instruction) const {
    switch (instruction.op) {
      case Op::send_activation: return {rank, instruction.peer, Op::send_activation, {}};
      case Op::receive_activation: return {instruction.peer, rank, Op::send_activation, {}};
      case Op::send_gradient: return {rank, instruction.peer, Op::send_gradient, {}};
      case Op::receive_gradient: return {instruction.peer, rank, Op::send_gradient, {}};
      default: break;
    }
    if (instruction.group < 0) return {rank, rank, instruction.op, {}};
    return {-1, -1, Op::forward, programs_[rank].groups[instruction.group].name};
  }

  // Starts what can start on one rank: compute in order, communication in order within its channel.
  bool advance(int rank) {
    const Program& program = programs_[rank];
    bool moved = false;
    std::set<std::pair<Channel, bool>> blocked;
    for (std::size_t i = first_open_[rank]; i < program.instructions.size(); ++i) {
      if (started_[rank][i]) continue;
      const Instruction& instruction = program.instructions[i];
      const int index = static_cast<int>(i);
      if (is_compute(instruction.op)) {
        if (index != next_compute(rank) || !ready(rank, index)) continue;
        started_[rank][i] = done_[rank][i] = true;
        moved = true;
        continue;
      }
      const bool sends = instruction.op == Op::send_activation || instruction.op == Op::send_gradient;
      const Channel channel = channel_of(rank, instruction);
      if (blocked.contains({channel, sends})) continue;
      if (!ready(rank, index)) {
        blocked.insert({channel, sends});
        continue;
      }
      started_[rank][i] = true;
      moved = true;
      if (instruction.group < 0 && instruction.peer < 0) {
        done_[rank][i] = true;  // a collective of one rank
      } else {
        waiting_[{channel, sends}][rank].push_back(index);
      }
    }
    while (first_open_[rank] < static_cast<int>(program.instructions.size()) && done_[rank][first_open_[rank]]) ++first_open_[rank];
    return moved;
  }

  // The first compute instruction that has not run.
  int next_compute(int rank) {
    const auto& instructions = programs_[rank].instructions;
    int& next = next_compute_[rank];
    while (next < static_cast<int>(instructions.size()) && (!is_compute(instructions[next].op) || done_[rank][next])) ++next;
    return next;
  }

  void complete(int rank, std::deque<int>& queue) {
    done_[rank][queue.front()] = true;
    queue.pop_front();
  }

  bool match() {
    bool moved = false;
    for (auto& [key, queues] : waiting_) {
      const auto& [channel, sends] = key;
      const auto& [from, to, op, group] = channel;
      if (!group.empty()) {
        while (match_collective(group, queues)) moved = true;
      } else if (sends) {
        const auto receives = waiting_.find({channel, false});
        if (receives == waiting_.end()) continue;
        auto& sent = queues[from];
        auto& received = receives->second[to];
        while (!sent.empty() && !received.empty()) {
          const Instruction& out = programs_[from].instructions[sent.front()];
          const Instruction& in = programs_[to].instructions[received.front()];
          if (out.micro_batch != in.micro_batch || out.bytes != in.bytes)
            refuse(programs_[from], sent.front(), "meets " + label(programs_[to], received.front()) + ", which waits for something else");
          complete(from, sent);
          complete(to, received);
          moved = true;
        }
      }
    }
    return moved;
  }

  bool match_collective(const std::string& name, std::map<int, std::deque<int>>& queues) {
    std::vector<Arrival> arrived;
    for (auto& [rank, queue] : queues)
      if (!queue.empty()) arrived.push_back({rank, queue.front()});
    if (arrived.empty()) return false;
    const Program& first = programs_[arrived.front().rank];
    const Instruction& reference = first.instructions[arrived.front().instruction];
    const std::vector<int>& members = first.groups[reference.group].ranks;
    if (arrived.size() < members.size()) return false;
    for (const Arrival& arrival : arrived) {
      const Program& program = programs_[arrival.rank];
      const Instruction& instruction = program.instructions[arrival.instruction];
      if (instruction.op != reference.op || instruction.bytes != reference.bytes || program.groups[instruction.group].ranks != members)
        refuse(program, arrival.instruction, text("joins group ", name, " while ", label(first, arrived.front().instruction), " is under way there"));
    }
    for (const Arrival& arrival : arrived) complete(arrival.rank, queues[arrival.rank]);
    return true;
  }

  const std::vector<Program>& programs_;
  std::vector<std::vector<bool>> done_;
  std::vector<std::vector<bool>> started_;
  std::vector<int> first_open_;    // everything before is done
  std::vector<int> next_compute_;
  std::map<std::pair<Channel, bool>, std::map<int, std::deque<int>>> waiting_;
};

}  // namespace

void check(const std::vector<Program>& programs) {
  for (const Program& program : programs) check_compute(program);
  Runner(programs).run();
}

}  // namespace tessera::program
