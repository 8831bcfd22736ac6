// Internal to the compiler: the forward and backward passes of a rank, with the messages that they wait for and send.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "plan/schedule/slot.hpp"
#include "program/peers.hpp"
#include "program/program.hpp"

namespace tessera::program {

// What is exchanged with the ranks that hold the previous and the next stage of a chunk. No peers at the model's ends; the rank itself
// where it holds the adjacent stage too, as at the turn of a V.
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

// Appends the instructions of `order` to the program, whose chunks are set.
PassResult add_passes(const std::vector<plan::Slot>& order, const PassOptions& options, Program& program);

}  // namespace tessera::program
