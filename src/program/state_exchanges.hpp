// The exchanges among ranks that hold the same parameters of a block: of gradients, and of weights that sharding leaves on other ranks.
#pragma once

#include <vector>

#include "model/model.hpp"
#include "plan/plan.hpp"

namespace tessera::program {

// A rank's elements of a block, before its state is sharded.
struct HeldParameters {
  double plain = 0;
  double experts = 0;
  double tied = 0;          // others that another block owns
  double table_values = 0;  // of sparse tables, of which no exchange moves the whole
  double table_rows = 0;
};
HeldParameters held_parameters(const model::BlockSpec& block, const plan::Strategy& strategy);

// When an exchange runs. Before a pass: it may begin while other blocks compute, and the pass waits for it. After one: other blocks may
// compute beside it, and the step's end waits for it.
enum class StateMoment { before_forward, before_first_forward, before_backward, after_backward, after_last_backward };

struct StateExchange {
  StateMoment moment = StateMoment::after_last_backward;
  const char* operation = "";  // "all_gather", "reduce_scatter", "all_reduce"
  double bytes = 0;            // the whole buffer: what a gather ends with and a scatter begins with
  int ranks = 1;               // of the group, each `stride` after the one before it
  int stride = 1;
};

struct StateBytes {
  double weight = 2;    // of an element
  double gradient = 2;  // of an element on the wire
  double trained = 1;   // share of the elements that have gradients
};

// Of a block, in the order of a step. Gradients are summed over all ranks that hold a parameter: scattered over those that shard its
// state, and then summed between such groups, each rank with its share; once a step, and under ZeRO-2 and ZeRO-3 scattered after each
// micro-batch's backward pass. Weights are gathered before the first forward pass after a step that was sharded (ZeRO-1 and ZeRO-2), or
// before every pass (ZeRO-3).
std::vector<StateExchange> state_exchanges(const HeldParameters& held, const plan::Strategy& strategy, const StateBytes& bytes);

}  // namespace tessera::program
