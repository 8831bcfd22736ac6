#include <algorithm>
#include <unordered_map>

#include "program/check_passes.hpp"
#include "program/streams.hpp"

namespace tessera::program {
namespace {

// Runs all programs without time. Sends complete only together with their receives (no buffering), so programs that pass
// cannot deadlock on any transport.
class Runner {
 public:
  Runner(const std::vector<Program>& programs, const std::function<int(int rank)>& program_of)
      : programs_(programs), streams_(streams_of(programs, program_of)) {
    head_.assign(streams_.streams.size(), 0);
    for (const Program& program : programs) done_.emplace_back(program.instructions.size(), false);
  }

  void run() {
    for (std::size_t p = 0; p < programs_.size(); ++p) waiting_.push_back(static_cast<int>(p));
    queued_.assign(programs_.size(), true);
    while (!waiting_.empty()) {
      const int program = waiting_.back();
      waiting_.pop_back();
      queued_[program] = false;
      for (const int stream : streams_.of_program[program]) advance(stream);
    }
    for (std::size_t p = 0; p < programs_.size(); ++p)
      for (std::size_t i = 0; i < done_[p].size(); ++i)
        if (!done_[p][i])
          refuse(programs_[p], static_cast<int>(i), "never completes: the ranks wait for each other, or a peer never sends or joins");
  }

 private:
  bool ready(int stream) const {
    const Stream& of = streams_.streams[stream];
    if (head_[stream] == of.instructions.size()) return false;
    const auto& after = at(stream).after;
    return std::all_of(after.begin(), after.end(), [&](int dependency) { return done_[of.program][dependency]; });
  }

  const Instruction& at(int stream) const { return programs_[streams_.streams[stream].program].instructions[index(stream)]; }
  int index(int stream) const { return streams_.streams[stream].instructions[head_[stream]]; }
  const Program& program(int stream) const { return programs_[streams_.streams[stream].program]; }

  void complete(int stream) {
    const int program = streams_.streams[stream].program;
    done_[program][index(stream)] = true;
    ++head_[stream];
    if (queued_[program]) return;
    queued_[program] = true;
    waiting_.push_back(program);
  }

  // Completes all that can be, from the head of the stream on.
  void advance(int stream) {
    const int connection = streams_.streams[stream].connection;
    while (ready(stream)) {
      if (connection >= 0 && !complete_together(streams_.connections[connection])) return;
      if (connection < 0) complete(stream);
    }
  }

  bool complete_together(const Connection& connection) {
    if (static_cast<int>(connection.streams.size()) < connection.expected) return false;
    if (!std::all_of(connection.streams.begin(), connection.streams.end(), [&](int stream) { return ready(stream); })) return false;
    if (connection.kind == Connection::Kind::message) check_message(connection);
    if (connection.kind == Connection::Kind::collective) check_collective(connection);
    for (const int stream : connection.streams) complete(stream);
    return true;
  }

  void check_message(const Connection& connection) const {
    int from = connection.streams[0];
    int to = connection.streams[1];
    if (!streams_.streams[from].sends) std::swap(from, to);
    if (at(from).micro_batch != at(to).micro_batch || at(from).bytes != at(to).bytes || at(from).offset != at(to).offset ||
        at(from).first_block != at(to).first_block || !cross_alike(from, to))
      refuse(program(from), index(from), "meets " + label(program(to), index(to)) + ", which waits for something else");
  }

  // Both sides of a message mean the same elements.
  bool cross_alike(int from, int to) const {
    if (at(from).crossed < 0 || at(to).crossed < 0) return at(from).crossed == at(to).crossed;
    const CrossedParts& sent = program(from).crossed[at(from).crossed];
    const CrossedParts& received = program(to).crossed[at(to).crossed];
    return sent.own == received.peer && sent.peer == received.own;
  }

  void check_collective(const Connection& connection) const {
    const int first = connection.streams.front();
    const CommGroup& group = program(first).groups[at(first).group];
    for (const int stream : connection.streams)
      if (at(stream).op != at(first).op || at(stream).bytes != at(first).bytes ||
          program(stream).groups[at(stream).group].ranks != group.ranks)
        refuse(program(stream), index(stream),
               text("joins group ", group.name, " while ", label(program(first), index(first)), " is under way there"));
  }

  const std::vector<Program>& programs_;
  Streams streams_;
  std::vector<std::size_t> head_;        // by stream
  std::vector<std::vector<bool>> done_;  // by program, instruction
  std::vector<int> waiting_;             // programs to look at again
  std::vector<bool> queued_;
};

// Where one step waits for another, two in a row, which is all that waits for each other.
void check_run(const std::vector<Program>& programs, const std::function<int(int rank)>& program_of) {
  if (std::none_of(programs.begin(), programs.end(), [](const Program& program) { return program.crosses_steps(); }))
    return Runner(programs, program_of).run();
  const std::vector<Program> twice = unrolled(programs, 2);
  Runner(twice, program_of).run();
}

}  // namespace

void check(const std::vector<Program>& programs) {
  std::unordered_map<int, int> index;
  for (std::size_t p = 0; p < programs.size(); ++p) index[programs[p].rank] = static_cast<int>(p);
  check_passes(programs);
  // A peer that does not exist: its messages never meet anything.
  const auto program_of = [&](int rank) {
    const auto found = index.find(rank);
    return found == index.end() ? -1 - rank : found->second;
  };
  check_run(programs, program_of);
}

void check(const std::vector<Program>& programs, const std::vector<int>& program_of) {
  check_passes(programs);
  check_run(programs, [&](int rank) { return program_of.at(rank); });
}

std::int64_t change_of(const plan::ChunkBytes& of, Op pass) {
  switch (pass) {
    case Op::forward: return of.saved;
    case Op::backward: return -of.saved;
    case Op::backward_input: return of.saved_for_weight - of.saved;
    default: return -of.saved_for_weight;
  }
}

}  // namespace tessera::program
