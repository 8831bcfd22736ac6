// One pass of one block on one rank as a small program of its own: its operators in order, and its exchanges with what each waits for and
// what waits for it. It is the same wherever a block of these dimensions and this strategy stands, so it is worked out once for all
// of them; a rank's program (program.hpp) has whole passes.
#pragma once

#include <vector>

#include "model/model.hpp"

namespace tessera::program {

// Which exchanges of a block its software overlaps with computing. The messages of a ring always overlap with its attention.
struct BesideRules {
  int pieces = 1;                   // > 1: tensor-parallel gathers and scatters, and the product next to them, are cut into so many pieces
  bool weight_gradients = false;    // the backward pass's tensor-parallel exchanges run beside the weight gradients of their own map
  bool shared_experts = false;      // all-to-alls run beside the experts that all tokens visit
  bool second_micro_batch = false;  // two micro-batches take turns: one's all-to-alls run beside the other's passes
};

// Computing runs in this order, one after the other.
struct ComputeStep {
  int op = 0;      // index into the pass's operators
  int pieces = 1;  // the operator is cut into so many equal ones, of which this is one
};

struct ExchangeStep {
  int exchange = 0;        // index into the pass's exchanges
  Bytes bytes;             // the exchange's, or a piece of them
  int after = -1;          // index of the computing step that it waits for; -1: begins with the pass
  int before = 0;          // index of the computing step that waits for it; their number: the end of the pass does
  bool of_second = false;  // it is the other micro-batch's, which moves as much: only the end waits for it
};

struct BlockPass {
  std::vector<ComputeStep> computing;
  std::vector<ExchangeStep> exchanges;  // in the order in which they begin: those over the same link queue behind each other
};

// Guarantees that the pass has each operator whole and in order, and all bytes of each exchange, after what it moves has been computed and
// before the operator that needs it; and that nothing waits in a circle.
BlockPass block_pass(const std::vector<model::Operator>& operators, const std::vector<model::Exchange>& exchanges,
                     const BesideRules& rules);

}  // namespace tessera::program
