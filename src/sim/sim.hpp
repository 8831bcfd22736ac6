// Runs all ranks' programs against a clock: step time, utilization, memory over time, a Chrome trace.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"
#include "profile/profile.hpp"
#include "program/program.hpp"

namespace tessera::sim {

// When one instruction of one rank ran.
struct Span {
  int rank = 0;
  int instruction = 0;
  Seconds begin;
  Seconds end;
};

struct RankResult {
  Seconds busy;                  // computing
  Seconds exposed;               // neither computing nor done with the step: waiting for data or for other ranks
  Bytes peak_memory;
};

// From `time` on, the rank holds so much.
struct MemoryPoint {
  int rank = 0;
  Seconds time;
  Bytes bytes;
};

struct Result {
  Seconds step;
  std::vector<RankResult> ranks;
  std::vector<Span> spans;       // by begin time
  std::vector<MemoryPoint> memory;  // by time
  double bubble = 0;             // 1 - busy / (step x ranks)
};

// Computation runs in each program's order; communication beside it, in order within a group or between two peers, from the
// moment that all who take part have come to it. Transfers that meet on a link share it evenly; computation beside a
// collective is slowed down as the profile says. The same inputs give the same result. Throws internal when the programs
// deadlock.
Result run(const std::vector<program::Program>& programs, const plan::Plan& plan, const model::ModelSpec& model,
           const model::TrainSpec& train, const cluster::ClusterSpec& cluster, const profile::Profile& profile);

// Chrome / Perfetto trace of the spans and the memory: a process per rank, a row per stream.
std::string to_chrome_trace(const Result& result, const std::vector<program::Program>& programs);

}  // namespace tessera::sim
