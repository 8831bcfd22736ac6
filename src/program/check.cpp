#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "program/program.hpp"
#include "program/streams.hpp"

namespace tessera::program {
namespace {

[[noreturn]] void refuse(const Program& program, int index, const std::string& why) {
  throw Error(ErrorCode::invalid_config, label(program, index) + ": " + why, {{}, 0, 0, program.rank, {}});
}

bool has(const std::vector<int>& values, int value) { return std::ranges::find(values, value) != values.end(); }

// How far one micro-batch has come in one chunk, and by which instructions.
struct Progress {
  int forward = 0;  // blocks forwarded, up to
  int input = 0;    // the backward pass's input half, down to
  int weight = 0;   // its weight half, down to
  int forward_end = -1;
  int input_end = -1;
  std::vector<int> activations = {};  // receives of what the first pass reads, from one peer or several, or what has gathered them
  std::vector<int> gradients = {};
};

// That every micro-batch passes every block once and in order, that passes and messages wait for what they need, that dependencies point
// back, and that every bucket is stepped once.
class PassCheck {
 public:
  PassCheck(const Program& program, int block_count) : program_(program), block_count_(block_count) {
    for (const Chunk& chunk : program.chunks)
      progress_.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(0, program.micro_batches)),
                             Progress{chunk.first_block, chunk.last_block, chunk.last_block});
  }

  void run() {
    // A bucket's exchanges wait for each other in their order.
    if (program_.delayed)
      for (std::size_t i = 0; i < program_.instructions.size(); ++i)
        if (const Instruction& each = program_.instructions[i];
            each.op == Op::reduce_gradients || each.op == Op::reduce_shards || each.op == Op::reduce_tied)
          exchanges_[each.bucket] = static_cast<int>(i);
    for (const Instruction& instruction : program_.instructions)
      if (instruction.op == Op::pull_rows) tables_block_ = instruction.first_block;
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      const int index = static_cast<int>(i);
      const Instruction& instruction = program_.instructions[i];
      for (const int dependency : instruction.after)
        if (dependency < 0 || dependency >= index)
          refuse(program_, index, text("depends on instruction ", dependency, ", which does not come before it"));
      for (const int dependency : instruction.after_previous)
        if (dependency < 0 || dependency >= static_cast<int>(program_.instructions.size()))
          refuse(program_, index, text("depends on instruction ", dependency, " of the step before, which does not exist"));
      switch (instruction.op) {
        case Op::forward: forward(index, instruction); break;
        case Op::backward: backward(index, instruction, true, true); break;
        case Op::backward_input: backward(index, instruction, true, false); break;
        case Op::backward_weight: backward(index, instruction, false, true); break;
        case Op::send_activation:
        case Op::send_gradient: send(index, instruction); break;
        case Op::receive_activation:
        case Op::receive_gradient: receive(index, instruction); break;
        case Op::gather_activation:
        case Op::gather_gradient: gather(index, instruction); break;
        case Op::optimizer_step:
          if (!stepped_.emplace(instruction.bucket, index).second) refuse(program_, index, "steps its bucket a second time");
          if (program_.delayed) finishes(index, instruction);
          break;
        case Op::reduce_gradients:
          if (zero_of(instruction) < 2) break;
          reducing_[instruction.bucket] = index;
          unreduced_.erase(instruction.bucket);
          break;
        case Op::gather_parameters:
          if (program_.delayed) finishes(index, instruction);
          if (zero_of(instruction) == 3 && !gathering_.insert(instruction.bucket).second)
            refuse(program_, index, "gathers what the rank holds");
          break;
        case Op::push_rows: push_rows(index, instruction); break;
        default: break;
      }
    }
    finish();
  }

 private:
  Progress& progress(int index, const Instruction& instruction, int chunk) {
    if (chunk < 0)
      refuse(program_, index,
             text("works on blocks [", instruction.first_block, ", ", instruction.last_block, "), which are not the rank's"));
    if (instruction.micro_batch < 0 || instruction.micro_batch >= program_.micro_batches)
      refuse(program_, index, text("works on micro-batch ", instruction.micro_batch, "; the step has ", program_.micro_batches));
    return progress_[chunk][instruction.micro_batch];
  }

  // Where what the instruction brings is written down.
  std::vector<int>& brought(int index, const Instruction& instruction, bool activation) {
    const int chunk = program_.chunk_of(activation ? instruction.first_block : instruction.first_block - 1);
    Progress& now = progress(index, instruction, chunk);
    const Chunk& blocks = program_.chunks[chunk];
    if (activation ? now.forward > blocks.first_block : now.input < blocks.last_block)
      refuse(program_, index, "comes after the pass that reads it");
    return activation ? now.activations : now.gradients;
  }

  // Messages of one pass carry neighbouring parts.
  void receive(int index, const Instruction& instruction) {
    std::vector<int>& others = brought(index, instruction, instruction.op == Op::receive_activation);
    if (!others.empty() && instruction.crossed < 0) {
      const Instruction& before = program_.instructions[others.back()];
      if (before.offset + before.bytes != instruction.offset)
        refuse(program_, index,
               text("begins at byte ", instruction.offset.value, " of the micro-batch; expected ", (before.offset + before.bytes).value,
                    ", where the message before it ends"));
    }
    others.push_back(index);
  }

  void gather(int index, const Instruction& instruction) {
    std::vector<int>& parts = brought(index, instruction, instruction.op == Op::gather_activation);
    if (!waits_for_all(instruction, parts)) refuse(program_, index, "does not wait for what it gathers");
    bring_all(index, parts);
    parts = {index};
  }

  // Of messages between stages that cut sequences differently: together they carry the rank's part. Those of its peers do not overlap.
  void bring_all(int index, const std::vector<int>& receives) const {
    std::int64_t missing = 0;
    for (const int receive : receives)
      if (const int crossed = program_.instructions[receive].crossed; crossed >= 0) {
        const CrossedParts& parts = program_.crossed[crossed];
        if (receive == receives.front()) missing = parts.own.count();
        missing -= shared_count(parts.own, parts.peer, parts.each);
      }
    if (missing != 0) refuse(program_, index, text("reads ", missing, " elements that no message brings"));
  }

  static bool waits_for_all(const Instruction& instruction, const std::vector<int>& sources) {
    return std::ranges::all_of(sources, [&](int source) { return has(instruction.after, source); });
  }

  // Computing runs in order: to wait for a later pass is to wait for that of index `from` too.
  bool waits_for_computing(const Instruction& instruction, int from) const {
    return std::ranges::any_of(instruction.after,
                               [&](int before) { return before >= from && is_compute(program_.instructions[before].op); });
  }

  // The pass reads what receives or the neighbouring stage on this rank have left, and waits for it.
  void reads(int index, const Instruction& instruction, const Progress& now, int block) {
    const bool forward = instruction.op == Op::forward;
    const std::vector<int>& receives = forward ? now.activations : now.gradients;
    if (!receives.empty() && waits_for_all(instruction, receives)) return bring_all(index, receives);
    if (const int chunk = program_.chunk_of(forward ? block - 1 : block); chunk >= 0 && receives.empty()) {
      const Progress& source = progress_[chunk][instruction.micro_batch];
      if (forward ? source.forward_end >= 0 : source.input_end >= 0) return;
    }
    refuse(program_, index, text("does not wait for what it reads at block ", block));
  }

  int zero_of(const Instruction& instruction) const { return program_.buckets[instruction.bucket].zero; }

  // Under ZeRO-3 a pass waits for the parameters that it reads, and under ZeRO-2 and 3 for the reduction of the gradients that it adds to.
  void shards(int index, const Instruction& pass) {
    for (const int dependency : pass.after) {
      const Instruction& before = program_.instructions[dependency];
      if (before.op == Op::gather_parameters) gathered_.insert(before.bucket);
      if (before.op == Op::reduce_gradients)
        if (const auto found = reducing_.find(before.bucket); found != reducing_.end() && found->second == dependency)
          reducing_.erase(found);
    }
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      const Bucket& bucket = program_.buckets[b];
      if (bucket.zero < 2) continue;
      const auto block = std::lower_bound(bucket.blocks.begin(), bucket.blocks.end(), pass.first_block);
      if (block == bucket.blocks.end() || *block >= pass.last_block) continue;
      if (bucket.zero == 3 && !gathered_.contains(static_cast<int>(b)))
        refuse(program_, index, text("does not wait for the parameters of bucket ", b));
      const bool adds = pass.op == Op::backward || pass.op == Op::backward_weight;
      if (adds && !has(pass.adds_to, static_cast<int>(b))) refuse(program_, index, text("adds to bucket ", b, " without saying so"));
    }
    for (const int b : pass.adds_to) {
      if (reducing_.contains(b)) refuse(program_, index, text("adds to bucket ", b, " while it is being reduced"));
      unreduced_.insert(b);
    }
    for (const int b : pass.releases) {
      gathered_.erase(b);
      gathering_.erase(b);
    }
  }

  bool reads_rows(const Instruction& pass) const { return tables_block_ >= pass.first_block && tables_block_ < pass.last_block; }

  // The rows of all micro-batches come at once. Computing runs in order: what the first pass has waited for is there for the others.
  void rows(int index, const Instruction& pass) {
    if (!reads_rows(pass) || std::exchange(rows_are_there_, true)) return;
    const auto pulls = [&](int before) { return program_.instructions[before].op == Op::pull_rows; };
    if (std::ranges::none_of(pass.after, pulls) && std::ranges::none_of(pass.after_previous, pulls))
      refuse(program_, index, "does not wait for the rows of tables that it reads");
  }

  void push_rows(int index, const Instruction& instruction) {
    pushes_rows_ = true;
    const int chunk = program_.chunk_of(instruction.first_block);
    if (chunk < 0) refuse(program_, index, text("is of block ", instruction.first_block, ", which is not the rank's"));
    for (const Progress& now : progress_[chunk])
      if (now.weight > instruction.first_block) refuse(program_, index, "comes before all gradients of rows are there");
    if (!waits_for_computing(instruction, adds_to_rows_))
      refuse(program_, index, "does not wait for the last pass that adds to gradients of rows");
  }

  void forward(int index, const Instruction& instruction) {
    const int chunk = program_.chunk_of(instruction.first_block);
    Progress& now = progress(index, instruction, chunk);
    const Chunk& blocks = program_.chunks[chunk];
    if (instruction.first_block != now.forward)
      refuse(program_, index, text("starts at block ", instruction.first_block, "; expected ", now.forward));
    if (instruction.last_block <= instruction.first_block || instruction.last_block > blocks.last_block)
      refuse(program_, index, text("ends at block ", instruction.last_block, "; expected at most ", blocks.last_block));
    if (program_.delayed) parameters(index, instruction);
    shards(index, instruction);
    rows(index, instruction);
    if (now.forward == blocks.first_block && blocks.first_block > 0) reads(index, instruction, now, blocks.first_block);
    now.forward = instruction.last_block;
    if (now.forward == blocks.last_block) now.forward_end = index;
  }

  void backward(int index, const Instruction& instruction, bool input, bool weight) {
    const int chunk = program_.chunk_of(instruction.last_block - 1);
    Progress& now = progress(index, instruction, chunk);
    const Chunk& blocks = program_.chunks[chunk];
    if (now.forward != blocks.last_block) refuse(program_, index, "comes before the forward pass is complete");
    const int expected = input ? now.input : now.weight;
    if (instruction.last_block != expected || (weight && now.weight != expected))
      refuse(program_, index, text("ends at block ", instruction.last_block, "; expected ", weight ? now.weight : now.input));
    if (instruction.first_block >= instruction.last_block || instruction.first_block < blocks.first_block)
      refuse(program_, index, text("starts at block ", instruction.first_block, "; expected at least ", blocks.first_block));
    if (program_.delayed) parameters(index, instruction);
    shards(index, instruction);
    if (!input && instruction.first_block < now.input) refuse(program_, index, "comes before the gradients of the inputs");
    if (input) {
      if (now.input == blocks.last_block && blocks.last_block < block_count_) reads(index, instruction, now, blocks.last_block);
      now.input = instruction.first_block;
      if (now.input == blocks.first_block) now.input_end = index;
    }
    if (weight) now.weight = instruction.first_block;
    if (weight && reads_rows(instruction)) adds_to_rows_ = index;
  }

  // A pass reads the parameters of its blocks. Computing runs in order, but what a gather brings must be waited for.
  // Stale gradients change no parameters before all passes have read them.
  void parameters(int index, const Instruction& instruction) {
    if (program_.stale) {
      if (!stepped_.empty()) refuse(program_, index, "comes after parameters were stepped");
      return;
    }
    if (ready_.size() == program_.buckets.size()) return;
    for (const int dependency : instruction.after)
      if (program_.instructions[dependency].op == Op::gather_parameters) ready_.insert(program_.instructions[dependency].bucket);
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      if (ready_.contains(static_cast<int>(b))) continue;
      for (const BucketEntry& entry : program_.buckets[b].entries)
        if (entry.block >= instruction.first_block && entry.block < instruction.last_block)
          refuse(program_, index, text("uses bucket ", b, " before the step before has stepped it"));
    }
  }

  // What a step and its gather wait for, where they finish the step before: the exchange that is the last of the bucket.
  void finishes(int index, const Instruction& instruction) {
    const bool gathers = instruction.op == Op::gather_parameters;
    const bool again = gathers && zero_of(instruction) == 3;  // before each pass
    if (!again && !instruction.finishes_previous) refuse(program_, index, "finishes the step before, but is not marked so");
    if (gathers) {
      const auto step = stepped_.find(instruction.bucket);
      if (step == stepped_.end() || !(again ? waits_for_computing(instruction, step->second) : has(instruction.after, step->second)))
        refuse(program_, index, "does not wait for the step of its bucket");
      return;
    }
    const auto last = exchanges_.find(instruction.bucket);
    if (last != exchanges_.end() && !has(instruction.after_previous, last->second))
      refuse(program_, index, text("does not wait for instruction ", last->second, " of the step before, which exchanges its bucket"));
    if (!program_.buckets[instruction.bucket].sharded()) ready_.insert(instruction.bucket);
  }

  // A message leaves after the pass that made it.
  void send(int index, const Instruction& instruction) {
    const bool activation = instruction.op == Op::send_activation;
    const int chunk = program_.chunk_of(activation ? instruction.first_block - 1 : instruction.first_block);
    const Progress& now = progress(index, instruction, chunk);
    const int made = activation ? now.forward_end : now.input_end;
    if (made < 0 || !waits_for_computing(instruction, made)) refuse(program_, index, "does not wait for the pass that makes it");
  }

  void finish() const {
    const int last = static_cast<int>(program_.instructions.size()) - 1;
    for (std::size_t c = 0; c < progress_.size(); ++c)
      for (std::size_t m = 0; m < progress_[c].size(); ++m) {
        const Progress& now = progress_[c][m];
        const Chunk& blocks = program_.chunks[c];
        const bool backward = now.input == blocks.first_block && now.weight == blocks.first_block;
        if (now.forward != blocks.last_block || (program_.training && !backward))
          refuse(program_, last, text("micro-batch ", m, " does not pass all blocks"));
      }
    if (program_.training && stepped_.size() != program_.buckets.size()) refuse(program_, last, "does not step every bucket");
    if (program_.training && tables_block_ >= 0 && !pushes_rows_) refuse(program_, last, "leaves gradients of rows without a push");
    if (!unreduced_.empty()) refuse(program_, last, text("leaves gradients of bucket ", *unreduced_.begin(), " without a reduction"));
  }

  const Program& program_;
  int block_count_;
  std::vector<std::vector<Progress>> progress_;  // by chunk, micro-batch
  std::map<int, int> stepped_;                   // by bucket: the step
  std::map<int, int> exchanges_;                 // delayed: bucket -> the last instruction that exchanges it
  std::set<int> ready_;                          // delayed: buckets whose parameters may be used
  std::set<int> gathering_;                      // ZeRO-3: buckets that are gathered, and not released since
  std::set<int> gathered_;                       // of these, those that a pass has waited for
  std::map<int, int> reducing_;                  // ZeRO-2 and 3: buckets whose reduction no pass has waited for
  std::set<int> unreduced_;                      // and those that hold gradients
  int tables_block_ = -1;                        // whose rows are pulled; -1: none
  bool rows_are_there_ = false;
  bool pushes_rows_ = false;
  int adds_to_rows_ = -1;  // the last pass that does
};

void check_passes(const std::vector<Program>& programs) {
  int block_count = 0;
  for (const Program& program : programs)
    for (const Chunk& chunk : program.chunks) block_count = std::max(block_count, chunk.last_block);
  for (const Program& program : programs) {
    if (program.instructions.empty())
      throw Error(ErrorCode::invalid_config, text("rank ", program.rank, " has nothing to do"), {{}, 0, 0, program.rank, {}});
    PassCheck(program, block_count).run();
  }
}

// Runs all programs without time. Sends complete only together with their receives (no buffering), so programs that pass
// cannot deadlock on any transport.
class Runner {
 public:
  Runner(const std::vector<Program>& programs, const std::function<int(int rank)>& program_of)
      : programs_(programs), streams_(streams_of(programs, program_of)), head_(streams_.streams.size(), 0) {
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
    return std::ranges::all_of(after, [&](int dependency) { return done_[of.program][dependency]; });
  }

  const Instruction& at(int stream) const { return program(stream).instructions[index(stream)]; }
  int index(int stream) const { return streams_.streams[stream].instructions[head_[stream]]; }
  const Program& program(int stream) const { return programs_[streams_.streams[stream].program]; }

  void complete(int stream) {
    const int program = streams_.streams[stream].program;
    done_[program][index(stream)] = true;
    ++head_[stream];
    if (!queued_[program]) waiting_.push_back(program);
    queued_[program] = true;
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
    if (!std::ranges::all_of(connection.streams, [&](int stream) { return ready(stream); })) return false;
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
  if (std::ranges::none_of(programs, &Program::crosses_steps)) return Runner(programs, program_of).run();
  Runner(unrolled(programs, 2), program_of).run();
}

}  // namespace

void check(const std::vector<Program>& programs) {
  std::map<int, int> index;
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

}  // namespace tessera::program
