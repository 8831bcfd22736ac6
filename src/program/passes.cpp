#include "program/passes.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "model/forms.hpp"

namespace tessera::program {
namespace {

using plan::Backward;
using plan::Slot;

class Writer {
 public:
  Writer(const PassOptions& options, Program& program) : options_(options), program_(program), complete_(program.chunks.size(), 0) {
    result_.completes.resize(program.chunks.size());
    for (const Bucket& bucket : program.buckets) {
      const std::initializer_list<int> ends = {bucket.entries.back().block, bucket.entries.front().block + 1};
      if (bucket.zero >= 2) backward_cuts_.insert(ends);
      if (bucket.zero == 3) forward_cuts_.insert(ends);
    }
  }

  PassResult write(const std::vector<Slot>& order) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (order[i].with_next && i + 1 < order.size()) {
        overlapped(order[i], order[i + 1]);
        ++i;
      } else {
        send(order[i], compute(order[i], receive(order[i])));
      }
    }
    return std::move(result_);
  }

 private:
  using Key = std::pair<int, int>;  // chunk, micro-batch

  const Chunk& chunk(const Slot& slot) const { return program_.chunks[slot.chunk]; }
  const StagePeers& peers(const Slot& slot) const { return options_.peers[slot.chunk]; }
  // Whom the pass reads from and writes to.
  const Boundary& source(const Slot& slot) const {
    return slot.part == Backward::weight ? none_ : slot.forward ? peers(slot).previous : peers(slot).next;
  }
  const Boundary& target(const Slot& slot) const {
    return slot.part == Backward::weight ? none_ : slot.forward ? peers(slot).next : peers(slot).previous;
  }

  int message(Op op, const Slot& slot, int block, const Peer& peer, std::vector<int> after) {
    const int index =
        append(program_, {op, slot.micro_batch, block, chunk(slot).last_block, peer.rank, -1, -1, peer.bytes, std::move(after)});
    program_.instructions.back().offset = peer.offset;
    program_.instructions.back().crossed = peer.crossed;
    return index;
  }

  void overlapped(const Slot& first, const Slot& second) {
    std::vector<int> needs = receive(first);
    for (const int other : receive(second)) needs.push_back(other);
    compute(first, needs);
    const int end = compute(second, needs);
    send(first, end);
    send(second, end);
  }

  // What the pass reads: from peers, or from the pass of the neighbouring stage on this rank.
  std::vector<int> receive(const Slot& slot) {
    const int block = slot.forward ? chunk(slot).first_block : chunk(slot).last_block;
    const Op op = slot.forward ? Op::receive_activation : Op::receive_gradient;
    std::vector<int> out;
    for (const Peer& from : source(slot).peers) {
      if (from.rank == program_.rank) {
        const int neighbour = program_.chunk_of(slot.forward ? block - 1 : block);
        return {(slot.forward ? forwards_ : inputs_).at({neighbour, slot.micro_batch})};
      }
      // Two receive buffers: the one in use, and the one that fills meanwhile.
      const std::vector<int>& readers = readers_[{from.rank, op}];
      std::vector<int> free;
      if (readers.size() >= 2) free.push_back(readers[readers.size() - 2]);
      out.push_back(message(op, slot, block, from, free));
    }
    if (const Boundary& from = source(slot); from.gather_group >= 0)
      return {append(program_, {slot.forward ? Op::gather_activation : Op::gather_gradient, slot.micro_batch, block, chunk(slot).last_block,
                                -1, -1, from.gather_group, from.gathered, std::move(out)})};
    return out;
  }

  int compute(const Slot& slot, std::vector<int> needs) {
    // Without backward passes nothing else keeps a stage from running ahead of the next one, with all that it sends.
    if (slot.forward && !program_.training && sends_.size() >= 2)
      needs.insert(needs.end(), sends_[sends_.size() - 2].begin(), sends_[sends_.size() - 2].end());
    const int last = slot.forward ? forward(slot, needs) : backward(slot, needs);
    for (const Peer& peer : source(slot).peers)
      if (peer.rank != program_.rank) readers_[{peer.rank, slot.forward ? Op::receive_activation : Op::receive_gradient}].push_back(last);
    return last;
  }

  // Through blocks [first, last), cut where state is sharded. Returns the last piece.
  int pass(Op op, const Slot& slot, int first, int last, std::vector<int> needs) {
    const std::set<int>& cuts = slot.forward ? forward_cuts_ : backward_cuts_;
    std::vector<int> ends = {first};
    ends.insert(ends.end(), cuts.upper_bound(first), cuts.lower_bound(last));
    ends.push_back(last);
    for (std::size_t piece = 0; piece + 1 < ends.size(); ++piece) {
      const std::size_t at = slot.forward ? piece : ends.size() - 2 - piece;
      needs = {append(program_, {op, slot.micro_batch, ends[at], ends[at + 1], -1, -1, -1, {}, std::move(needs)})};
    }
    return needs.front();
  }

  int forward(const Slot& slot, std::vector<int> needs) {
    const bool first_use = options_.before_first_use && opened_.insert(slot.chunk).second;
    std::vector<int> ends = {chunk(slot).first_block};
    if (first_use && options_.cut_first_use) ends.assign(options_.cuts[slot.chunk].rbegin(), options_.cuts[slot.chunk].rend());
    ends.push_back(chunk(slot).last_block);
    for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
      if (first_use)
        for (const int other : options_.before_first_use(ends[i], ends[i + 1])) needs.push_back(other);
      needs = {pass(Op::forward, slot, ends[i], ends[i + 1], std::move(needs))};
    }
    return result_.last_forward = forwards_[{slot.chunk, slot.micro_batch}] = needs.front();
  }

  int backward(const Slot& slot, std::vector<int> needs) {
    const Op op = slot.part == Backward::whole ? Op::backward : slot.part == Backward::input ? Op::backward_input : Op::backward_weight;
    const int begin = chunk(slot).first_block;
    // After the chunk's last weight gradients its buckets are complete: cut where they end.
    const bool final = slot.part != Backward::input && ++complete_[slot.chunk] == program_.micro_batches;
    if (slot.part == Backward::weight) needs.push_back(inputs_.at({slot.chunk, slot.micro_batch}));
    int upper = chunk(slot).last_block;
    for (const int lower : final ? options_.cuts[slot.chunk] : std::vector<int>{begin}) {
      if (lower >= upper) continue;
      needs = {pass(op, slot, lower, upper, std::move(needs))};
      upper = lower;
      if (final) result_.completes[slot.chunk][lower] = needs.front();
    }
    if (slot.part != Backward::weight) inputs_[{slot.chunk, slot.micro_batch}] = needs.front();
    return needs.front();
  }

  void send(const Slot& slot, int after) {
    const int block = slot.forward ? chunk(slot).last_block : chunk(slot).first_block;
    std::vector<int> sent;
    for (const Peer& to : target(slot).peers) {
      if (to.rank == program_.rank) continue;
      sent.push_back(message(slot.forward ? Op::send_activation : Op::send_gradient, slot, block, to, {after}));
    }
    if (slot.forward && !sent.empty()) sends_.push_back(std::move(sent));
  }

  const PassOptions& options_;
  const Boundary none_;
  Program& program_;
  PassResult result_;
  std::map<Key, int> forwards_;
  std::map<Key, int> inputs_;                               // instructions that complete the gradient of a chunk's inputs
  std::map<std::pair<int, Op>, std::vector<int>> readers_;  // by peer and kind: the passes that have read what came from there
  std::vector<std::vector<int>> sends_;                     // of activations, by pass in order
  std::set<int> opened_;                                    // chunks that have passed forward
  std::set<int> forward_cuts_, backward_cuts_;              // blocks before which passes are cut, as a bucket under ZeRO-2 or 3 begins
  std::vector<std::int64_t> complete_;                      // by chunk: micro-batches whose weight gradients are in
};

}  // namespace

int append(Program& program, Instruction instruction) {
  program.instructions.push_back(std::move(instruction));
  return static_cast<int>(program.instructions.size()) - 1;
}

PassResult add_passes(const std::vector<plan::Slot>& order, const PassOptions& options, Program& program) {
  return Writer(options, program).write(order);
}

void add_pull(Program& program, int block, const model::BlockSpec& tables) {
  // Those of all micro-batches, at most: where no key repeats.
  const std::int64_t lookups = program.cut_of(block).micro_batch_size * program.micro_batches * model::lookups_of_sample(tables);
  append(program, {Op::pull_rows, -1, block, block + 1, -1, -1, -1, lookups * bytes_of_row(tables.dim("dim")), {}});
}

void wait_for_pull(Program& program) {
  std::vector<Instruction>& all = program.instructions;
  const Instruction& pull = all.front();
  ensure(pull.op == Op::pull_rows, "a program that reads tables pulls rows");
  const auto reader = std::ranges::find_if(all, [&](const Instruction& each) {
    return each.op == Op::forward && each.first_block <= pull.first_block && pull.first_block < each.last_block;
  });
  (program.rows_ahead ? reader->after_previous : reader->after).push_back(0);
}

void add_push(Program& program, int block, std::vector<int> after) {
  wait_for_pull(program);
  const Bytes bytes = program.instructions.front().bytes;
  const int push = append(program, {Op::push_rows, -1, block, block + 1, -1, -1, -1, bytes, std::move(after)});
  // A server takes what a rank asks for in order: the next pull sees the push.
  program.instructions.front().after_previous = {push};
}

}  // namespace tessera::program
