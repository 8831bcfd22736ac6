// The order in which a stage works through its micro-batches.
#pragma once

#include <vector>

#include "plan/plan.hpp"

namespace tessera::plan {

struct Slot {
  bool forward = true;
  int micro_batch = 0;
};

// GPipe (Huang et al. 2019): all forwards, then all backwards. 1F1B (Narayanan et al. 2019, PipeDream-Flush): a warm-up of
// stage_count - stage - 1 forwards, then one forward and one backward in turn, so that at most stage_count - stage
// micro-batches are held at once.
std::vector<Slot> order_of(Schedule schedule, int stage, int stage_count, int micro_batches);

}  // namespace tessera::plan
