#include "program/streams.hpp"

#include <map>
#include <set>
#include <tuple>

namespace tessera::program {
namespace {

class Builder {
 public:
  Builder(const std::vector<Program>& programs, const std::function<int(int)>& program_of) : programs_(programs), program_of_(program_of) {
    out_.of_program.resize(programs.size());
  }

  Streams build() {
    for (std::size_t p = 0; p < programs_.size(); ++p) {
      group_streams_.clear();
      message_streams_.clear();
      const int computing = add_stream(static_cast<int>(p), -1);
      const auto& instructions = programs_[p].instructions;
      for (std::size_t i = 0; i < instructions.size(); ++i) {
        const int stream = is_compute(instructions[i].op) ? computing : stream_of(static_cast<int>(p), instructions[i]);
        out_.streams[stream].instructions.push_back(static_cast<int>(i));
      }
    }
    return std::move(out_);
  }

 private:
  int add_stream(int program, int connection) {
    const int index = static_cast<int>(out_.streams.size());
    out_.streams.push_back({program, connection, false, {}});
    out_.of_program[program].push_back(index);
    if (connection >= 0) out_.connections[connection].streams.push_back(index);
    return index;
  }

  int add_connection(Connection::Kind kind, int expected) {
    out_.connections.push_back({kind, {}, expected});
    return static_cast<int>(out_.connections.size()) - 1;
  }

  int stream_of(int p, const Instruction& instruction) {
    if (is_message(instruction.op)) return message_stream(p, instruction);
    if (instruction.group < 0) return add_stream(p, add_connection(Connection::Kind::alone, 1));
    if (const auto known = group_streams_.find(instruction.group); known != group_streams_.end()) return known->second;
    const CommGroup& group = programs_[p].groups[instruction.group];
    const auto [found, fresh] = groups_.try_emplace(group.name, -1);
    if (fresh) {
      std::set<int> members;
      for (const int rank : group.ranks) members.insert(program_of_(rank));
      found->second = add_connection(Connection::Kind::collective, static_cast<int>(members.size()));
    }
    return group_streams_[instruction.group] = add_stream(p, found->second);
  }

  int message_stream(int p, const Instruction& instruction) {
    const auto [known, unseen] = message_streams_.try_emplace({instruction.peer, instruction.op}, -1);
    if (!unseen) return known->second;
    const bool sends = is_send(instruction.op);
    const bool activation = instruction.op == Op::send_activation || instruction.op == Op::receive_activation;
    const int peer = program_of_(instruction.peer);
    const auto [found, fresh] = messages_.try_emplace({sends ? p : peer, sends ? peer : p, activation}, -1);
    if (fresh) found->second = add_connection(Connection::Kind::message, 2);
    known->second = add_stream(p, found->second);
    out_.streams[known->second].sends = sends;
    return known->second;
  }

  const std::vector<Program>& programs_;
  const std::function<int(int)>& program_of_;
  Streams out_;
  std::map<std::string, int> groups_;
  std::map<std::tuple<int, int, bool>, int> messages_;  // from, to, activation -> connection
  std::map<int, int> group_streams_;                    // of the program at hand
  std::map<std::pair<int, Op>, int> message_streams_;
};

}  // namespace

Streams streams_of(const std::vector<Program>& programs, const std::function<int(int rank)>& program_of) {
  return Builder(programs, program_of).build();
}

}  // namespace tessera::program
