// Internal to the compiler: the forward and backward passes of a rank, with the messages that they wait for and send.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "plan/schedule/slot.hpp"
#include "program/peers.hpp"
#include "program/program.hpp"

namespace tessera::program {

// The ranks that hold the stage before and behind, with what a message between them weighs; none at the model's ends, the rank
// itself at the turn of a V.
struct Neighbours {
  std::vector<Peer> before;
  std::vector<Peer> behind;
};

struct PassPlan {
  std::vector<Neighbours> neighbours;  // by chunk
  std::vector<std::vector<int>> cuts;  // by chunk: where the last micro-batch's backward pass is cut, downwards
  // Appends what the first forward pass through blocks [first, last) needs before, and returns what it waits for.
  std::function<std::vector<int>(int first, int last)> before_first_use = {};
  bool cut_first_use = false;  // that pass is cut at the same blocks
};

struct PassResult {
  int last_forward = -1;
  // By chunk: lowest block of each piece of the last backward pass -> the instruction that completes its gradients.
  std::vector<std::map<int, int>> completes;
};

// Appends the instructions of `order` to the program, whose chunks are set.
PassResult add_passes(const std::vector<plan::Slot>& order, const PassPlan& plan, Program& program);

}  // namespace tessera::program
