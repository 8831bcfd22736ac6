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
  // Runs overlapped with the slot that follows it (a forward with a backward pass): both begin when both can, and what they
  // send leaves when both have ended.
  bool with_next = false;
  bool operator==(const Slot&) const = default;
};

// By pipeline rank: the ranks of one tensor- and data-parallel index, in the order of the first stages they hold.
using Orders = std::vector<std::vector<Slot>>;

}  // namespace tessera::plan
