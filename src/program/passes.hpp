// Internal to the compiler: the forward and backward passes of a rank, with the messages, the exchanges of sharded state and the rows of
// tables that they wait for and send.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "plan/plan.hpp"
#include "program/peers.hpp"
#include "program/program.hpp"

namespace tessera::program {

// The exchanges with the ranks that hold the stages before and after a chunk. There are no peers at the model's ends; the peer is the rank
// itself if it holds the adjacent stage too, as at the turn of a V.
struct StagePeers {
  Boundary previous;
  Boundary next;
};

struct PassOptions {
  std::vector<StagePeers> peers;  // by chunk
  // By chunk, in descending order: the blocks at which the last micro-batch's backward pass is cut, so that the gradients of the blocks
  // from there on can be reduced while the blocks below compute. The last one is the chunk's first block.
  std::vector<std::vector<int>> cuts;
  // Called before the first forward pass through blocks [first, last). It appends the instructions which that pass needs, and returns the
  // indices of those that the pass waits for.
  std::function<std::vector<int>(int first, int last)> before_first_use = {};
  bool cut_first_use = false;  // whether that pass is cut at the same blocks
};

// Appends to the instructions of a program. Returns the index.
int append(Program& program, Instruction instruction);

struct PassResult {
  int last_forward = -1;  // index of the last forward pass
  // By chunk: the lowest block of each piece of the last backward pass, and the index of the instruction that completes its gradients.
  std::vector<std::map<int, int>> completes;
};

// Appends the instructions of `order` to the program, whose chunks and buckets are set: each pass cut where a bucket under ZeRO-2 or 3
// begins.
PassResult add_passes(const std::vector<plan::Slot>& order, const PassOptions& options, Program& program);

// What ZeRO-2 and ZeRO-3 add to the passes. The program holds its buckets and passes and messages alone, and under a delayed exchange the
// steps that these wait for. Adds
//   - under ZeRO-3, a gather of each bucket before the passes that read it, at the earliest when the pass before the last one ends: a rank
//     holds the gathered parameters of two neighbouring passes at most; under a delayed exchange after the step of the bucket, too;
//   - under ZeRO-2 and 3, a reduce-scatter of each bucket after each micro-batch's backward pass, for which the next pass that adds to the
//     bucket waits.
// `loss_block`: whose forward pass adds to gradients, too; -1 where none does. Returns the last reduction of each such bucket; `passes`
// then says where its instructions stand now.
std::map<int, int> add_shard_exchanges(Program& program, PassResult& passes, int loss_block, Bytes element);

// Begins the program with the pull from parameter servers of the rows that all micro-batches read in `block`, which has the tables.
void add_pull(Program& program, int block, const model::BlockSpec& tables);
// Has the first pass that reads them wait for the pull: of its own step, or with Program::rows_ahead of the one before.
void wait_for_pull(Program& program);
// Does so, and appends the push, which waits for `after`; the next step's pull waits for it.
void add_push(Program& program, int block, std::vector<int> after);

}  // namespace tessera::program
