// Internal: two lanes of one rank: computation in order, and communication beside it that starts as its data become ready
// and slows the computation down while it runs.
#pragma once

#include <algorithm>
#include <vector>

namespace tessera::plan {

struct LaneWork {
  double compute = 0;                  // seconds when alone
  std::vector<double> released;        // durations of the communications that may start once this is done, in order
};

struct LaneEnd {
  double compute = 0;                  // when the last computation ended
  double communication = 0;            // when the last communication ended; the start where there was none
  std::vector<double> compute_ends;    // by work
};

inline LaneEnd run_lanes(double start, const std::vector<LaneWork>& works, double slowdown) {
  LaneEnd end{start, start, {}};
  double now = start;
  double busy_until = start;           // of the communication lane
  for (const LaneWork& work : works) {
    const double covered = std::max(0.0, busy_until - now);
    // Within `covered` seconds only covered / slowdown of work gets done.
    now = work.compute * slowdown <= covered ? now + work.compute * slowdown : now + covered + (work.compute - covered / slowdown);
    end.compute_ends.push_back(now);
    for (double duration : work.released) busy_until = std::max(busy_until, now) + duration;
  }
  end.compute = now;
  end.communication = busy_until;
  return end;
}

}  // namespace tessera::plan
