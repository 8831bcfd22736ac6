// Internal: two lanes of one rank: computation in order, and communication beside it that starts as its data become ready
// and slows the computation down while it runs.
#pragma once

#include <algorithm>
#include <vector>

#include "profile/profile.hpp"

namespace tessera::cost {

struct LaneWork {
  double compute = 0;            // seconds when alone
  std::vector<double> released;  // durations of the communications that may start once this is done, in order
};

struct LaneEnd {
  double compute = 0;                // when the last computation ended
  double communication = 0;          // when the last communication ended; when computing did where it hid them
  std::vector<double> compute_ends;  // by work
};

// While both run, computing takes `overlap.slows` times as long and communication `overlap.slowed` times.
inline LaneEnd run_lanes(double start, const std::vector<LaneWork>& works, const profile::Overlap& overlap) {
  LaneEnd end{start, start, {}};
  double now = start;
  double left = 0;  // of the communications under way, alone
  for (const LaneWork& work : works) {
    const double beside = std::min(work.compute * overlap.slows, left * overlap.slowed);
    now += beside + (work.compute - beside / overlap.slows);
    left -= beside / overlap.slowed;
    end.compute_ends.push_back(now);
    for (double duration : work.released) left += duration;
  }
  end.compute = now;
  end.communication = now + left;
  return end;
}

}  // namespace tessera::cost
