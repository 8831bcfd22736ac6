// One entry of the order in which a rank works through its micro-batches.
#pragma once

#include <vector>

namespace tessera::plan {

// A backward pass as a whole, or its halves: the gradient of the inputs, which the stage before waits for, and the gradient
// of the weights, which nobody waits for until the step ends (Qi et al. 2023, arXiv 2401.10241).
enum class Backward { whole, input, weight };

struct Slot {
  bool forward = true;
  int micro_batch = 0;
  int chunk = 0;                    // which of the rank's stages, in model order
  Backward part = Backward::whole;  // of a backward pass
  // Overlaps with the next slot (a forward with a backward pass, as in DualPipe): both begin when the inputs of both are there, and both
  // send when both have ended.
  bool with_next = false;
  bool operator==(const Slot&) const = default;
};

// What each pipeline rank does in a step, by pipeline rank.
using Orders = std::vector<std::vector<Slot>>;

}  // namespace tessera::plan
