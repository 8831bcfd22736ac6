// Orders of passes that are made for the times of a pipeline's stages, where those of the known schedules are made for equal ones.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.hpp"
#include "plan/schedule/schedule.hpp"

namespace tessera::plan {

// What tuned_orders knows of a pipeline. Every backward pass runs as two halves.
struct TimedPipeline {
  Schedule placement = Schedule::one_f_one_b;  // says which stages stand on a pipeline rank (stage_at)
  Pipeline pipeline;
  int micro_batches = 1;
  std::vector<StageTimes> stages = {};              // in model order
  std::vector<Seconds> between = {};                // by pipeline rank: after its passes of a step and before those of the next one
  bool steps_overlap = false;                       // a rank waits for no other rank between two steps
  std::vector<std::int64_t> room = {};              // by pipeline rank: bytes that activations may take
  std::vector<std::vector<ChunkBytes>> bytes = {};  // by pipeline rank and chunk: what a micro-batch takes of them
};

// Seconds from a step to the next one under these orders, of which each must hold every pass once. Messages take their time beside passes,
// one at a time or several. Infinite where ranks would wait for each other for ever, two messages would overtake each other, or activations
// do not fit.
Seconds step_of(const TimedPipeline& pipeline, const Orders& orders);

// The best orders that were found: `first` (in halves), what greedy rules and fitted_order make, and from the best of these on by simulated
// annealing (Kirkpatrick et al. 1983), which moves single passes. Forward passes and both halves take more than no time. `effort`: passes
// that may be looked at; a hundred thousand take about a millisecond. The same input gives the same orders.
Orders tuned_orders(const TimedPipeline& pipeline, const Orders& first, std::int64_t effort);

}  // namespace tessera::plan
