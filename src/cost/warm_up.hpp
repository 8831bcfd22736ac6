// Internal: what the schedules make of stages' times. A pipeline rank is busy for m (f + b) seconds with m micro-batches;
// filling and draining the pipeline costs each other pipeline rank a share of one micro-batch's passes. So a step takes
//   max over pipeline ranks of (m (f + b) - fill + once a step)  +  sum over pipeline ranks of fill,
// for 1F1B with equal stages the (m + p - 1) (f + b) of Narayanan et al. 2021 (section 2.2.1).
#pragma once

#include <cstdint>

#include "plan/plan.hpp"

namespace tessera::cost {

// Shares of a pipeline rank's forward and backward pass of one micro-batch.
struct WarmUp {
  double forward = 1;
  double backward = 1;
};

inline bool several_stages_a_rank(plan::Schedule schedule) {
  return schedule == plan::Schedule::interleaved || schedule == plan::Schedule::zb_v || schedule == plan::Schedule::dualpipe_v;
}

// The least number of micro-batches with which a schedule has enough weight halves to fill its bubble.
inline std::int64_t least_micro_batches(plan::Schedule schedule, int pipeline_size) {
  switch (schedule) {
    case plan::Schedule::zb_h1: return pipeline_size;
    case plan::Schedule::zb_h2: return 2 * pipeline_size - 1;
    case plan::Schedule::zb_v:
    case plan::Schedule::dualpipe_v: return 2 * pipeline_size;
    default: return 1;
  }
}

// Holds for at least least_micro_batches(). `leftover`: the share of the warm-up's forward passes that stays idle when backward passes are
// split (Calibration::weight_pass_bubble).
inline WarmUp warm_up_of(plan::Schedule schedule, int chunks, double leftover) {
  switch (schedule) {
    case plan::Schedule::one_f_one_b:
    case plan::Schedule::gpipe: break;
    case plan::Schedule::interleaved: return {1.0 / chunks, 1.0 / chunks};
    // Backward for the inputs, as long as forward, is on the way: (p - 1)(F + B - W).
    case plan::Schedule::zb_h1: return {1, 0};
    case plan::Schedule::zb_h2: return {leftover, 0};
    // Two stages of half the depth: the warm-up is half as long.
    case plan::Schedule::zb_v:
    case plan::Schedule::dualpipe_v: return {leftover / 2, 0};
  }
  return {};
}

}  // namespace tessera::cost
