// Orders of passes tuned to the times of a pipeline's stages; the orders of the known schedules suit stages of equal times.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.hpp"
#include "plan/schedule/schedule.hpp"

namespace tessera::plan {

// A pipeline as tuned_orders sees it. Every backward pass runs as two halves.
struct TimedPipeline {
  Schedule placement = Schedule::one_f_one_b;  // says which stages stand on a pipeline rank (stage_at)
  Pipeline pipeline;
  int micro_batches = 1;
  std::vector<StageTimes> stages = {};              // in model order
  std::vector<Seconds> between = {};                // by pipeline rank: from its last pass of a step to its first of the next
  bool steps_overlap = false;                       // between two steps a rank waits for no other rank
  std::vector<std::int64_t> room = {};              // by pipeline rank: bytes that activations may take
  std::vector<std::vector<ChunkBytes>> bytes = {};  // by pipeline rank and chunk: activation bytes of a micro-batch
};

// Seconds from one step to the next under these orders. Each order must have every pass of its pipeline rank once. Messages run beside
// passes and do not slow each other down. Infinite if ranks would deadlock, if two messages would overtake each other, or if the
// activations do not fit into the memory.
Seconds step_of(const TimedPipeline& pipeline, const Orders& orders);

// The best orders found: candidates are `first` (in halves), greedy rules and fitted_order; simulated annealing (Kirkpatrick et al. 1983),
// which moves single passes, goes on from the best of these. All passes take more than no time. `effort`: passes that may be looked at; a
// hundred thousand take about a millisecond. The same input gives the same orders.
Orders tuned_orders(const TimedPipeline& pipeline, const Orders& first, std::int64_t effort);

}  // namespace tessera::plan
