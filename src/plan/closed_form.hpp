// Internal: what the schedules make of stages' times. A place of the pipeline is busy for m (f + b) seconds with m micro-batches;
// filling and draining the pipeline costs each other place a share of one micro-batch's passes. So a step takes
//   max over places of (m (f + b) - fill + once a step)  +  sum over places of fill,
// for 1F1B with equal stages the (m + p - 1) (f + b) of Narayanan et al. 2021 (section 2.2.1).
#pragma once

#include <algorithm>
#include <cstdint>

#include "plan/plan.hpp"

namespace tessera::plan {

// Shares of a place's forward and backward pass of one micro-batch.
struct Fill {
  double forward = 1;
  double backward = 1;
};

// Stages of equal depth alone, which the search over blocks does not cut.
inline bool several_stages_a_rank(Schedule schedule) {
  return schedule == Schedule::interleaved || schedule == Schedule::zb_v || schedule == Schedule::dualpipe_v;
}

// Micro-batches from which on a schedule has weight halves enough to fill its bubble with.
inline std::int64_t least_micro_batches(Schedule schedule, int places) {
  switch (schedule) {
    case Schedule::zb_h1: return places;
    case Schedule::zb_h2: return 2 * places - 1;
    case Schedule::zb_v:
    case Schedule::dualpipe_v: return 2 * places;
    default: return 1;
  }
}

// With at least least_micro_batches. `leftover`: of the forward passes of the warm-up that split backward passes leave idle
// (Calibration::weight_pass_bubble).
inline Fill fill_of(Schedule schedule, int chunks, double leftover) {
  switch (schedule) {
    case Schedule::one_f_one_b:
    case Schedule::gpipe: break;
    case Schedule::interleaved: return {1.0 / chunks, 1.0 / chunks};
    // Backward for the inputs, as long as forward, is on the way: (p - 1)(F + B - W).
    case Schedule::zb_h1: return {1, 0};
    case Schedule::zb_h2: return {leftover, 0};
    // Two stages of half the depth: the warm-up is half as long.
    case Schedule::zb_v:
    case Schedule::dualpipe_v: return {leftover / 2, 0};
  }
  return {};
}

// Micro-batches that a place holds at once, under the schedules of one stage a place.
inline std::int64_t held_at_once(Schedule schedule, int place, int places, std::int64_t micro_batches) {
  switch (schedule) {
    case Schedule::gpipe: return micro_batches;
    case Schedule::zb_h1: return std::min<std::int64_t>(places, micro_batches);
    case Schedule::zb_h2: return std::min<std::int64_t>(2 * places - 1, micro_batches);
    default: return std::min<std::int64_t>(places - place, micro_batches);
  }
}

}  // namespace tessera::plan
