// One pass of one block on one rank as a small program of its own: its operators in order, and its exchanges with what each waits for and
// what waits for it. It is the same wherever a block of these dimensions and this strategy stands, so it is worked out once for all
// of them; a rank's program (program.hpp) has whole passes.
#pragma once

#include <vector>

#include "model/model.hpp"

namespace tessera::program {

// Which exchanges of a block the software that runs it puts beside computing. The messages of a ring always run beside its attention.
struct BesideRules {
  int pieces = 1;                   // > 1: tensor-parallel gathers and scatters are cut into so many, with the product next to them
  bool weight_gradients = false;    // tensor-parallel exchanges of the backward pass run beside the gradients of their own map
  bool shared_experts = false;      // all-to-alls run beside the experts that all tokens pass
  bool second_micro_batch = false;  // two micro-batches take turns: all-to-alls run beside the passes of the other one
};

// Computing runs in this order, one after the other.
struct ComputeStep {
  int op = 0;      // index into the pass's operators
  int pieces = 1;  // the operator is cut into so many equal ones, of which this is one
};

struct ExchangeStep {
  int exchange = 0;        // index into the pass's exchanges
  Bytes bytes;             // of the exchange's; all of them, unless it is cut into pieces
  int after = -1;          // index of the computing step that it waits for; -1: begins with the pass
  int before = 0;          // index of the computing step that waits for it; their number: the end of the pass
  bool of_second = false;  // of the micro-batch that takes turns with this one, which moves as much: only the end waits for it
};

struct BlockPass {
  std::vector<ComputeStep> computing;
  std::vector<ExchangeStep> exchanges;  // in the order in which they begin: those over the same link queue behind each other
};

// The pass has each operator whole and in order, and each exchange with all of its bytes, not before what it moves has been computed and
// not after the operator that needs it; and nothing waits in a circle.
BlockPass block_pass(const std::vector<model::Operator>& operators, const std::vector<model::Exchange>& exchanges,
                     const BesideRules& rules);

}  // namespace tessera::program
