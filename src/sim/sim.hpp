// Runs all ranks' programs against a clock: step time, utilization, memory over time, a Chrome trace.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "cluster/cluster.hpp"
#include "cost/cost_model.hpp"
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
  Seconds exposed = {};  // of a pass or an optimizer step: the rank computes until `end` - `exposed`, then communicates until `end`
};

// How a rank spends its step.
struct Spent {
  // Computing. `recompute` is the forward passes that recomputation repeats; `backward` is without them.
  Seconds forward, backward, recompute, optimizer;
  // Exposed communication: inside passes; of messages between stages; of gradients and the step's scalars; of parameters, gathered after a
  // sharded step; of table rows.
  Seconds in_passes, messages, gradients, parameters, rows;
};

struct RankResult {
  Seconds busy;     // computing
  Seconds exposed;  // communicating and not computing
  Seconds idle;     // waiting for other ranks; busy, exposed and idle add up to the step
  Seconds passes;   // from the beginning of its first forward pass to the end of its last backward pass
  Bytes peak_memory;
  Spent spent = {};  // its first four members add up to `busy`, the others to `exposed`
};

// The rank holds `bytes` from `time` on, until its next point.
struct MemoryPoint {
  int rank = 0;
  Seconds time;
  Bytes bytes;
};

struct Result {
  Seconds step;
  std::vector<RankResult> ranks;    // by rank
  std::vector<Span> spans;          // sorted by begin time
  std::vector<MemoryPoint> memory;  // sorted by time
  // Shares of the time of all ranks; they add up to 1.
  double utilization = 0;  // computing
  double exposed = 0;      // exposed communication
  double bubble = 0;       // idle
  // The bubble rate of papers on schedules (Qi et al. 2023): of the rank with the longest RankResult::passes, the share of them in which it
  // runs no pass. Time before its first and after its last pass does not count, because in a chain of steps no rank loses it.
  double pipeline_bubble = 0;
};

// The programs that simulate() ran, and its result.
struct Simulation {
  std::vector<program::Program> programs;  // of the simulated ranks
  Result result;                           // spans and memory are of the simulated ranks, `ranks` is of all
};
// one_of_alike: if all ranks of each stage do the same on equal devices and links, one rank is simulated for all of them, so that thousands
// of ranks take as long as a few. every_rank: all ranks are simulated, and all have spans.
enum class Simulated { one_of_alike, every_rank };
// Compiles, checks and runs the programs of a plan, which must have passed plan::check. Each program computes in its order. Communication
// runs beside computing, in order within a group or between two peers, and begins when all ranks that take part have reached it. Transfers
// on the same link share it evenly. A collective slows computing down by the factor that the profile says. The same inputs give the same
// result. Throws invalid_config when communication is to be simulated (cost::CostModel::plays_exchanges) in a precision that it knows no
// times of (other than fp32 and bf16). Warns when the step of accelerators comes out below one of cost::least_times.
Simulation simulate(const plan::Plan& plan, cost::CostModel& cost_model, Simulated which = Simulated::one_of_alike);
Simulation simulate(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train,
                    const cluster::ClusterSpec& cluster, const profile::Profile& profile, Simulated which = Simulated::one_of_alike);

// The simulated step of a plan, with Simulated::one_of_alike. Takes a fraction of a millisecond to milliseconds.
plan::Prediction predict(const plan::Plan& plan, cost::CostModel& cost_model);

// Chrome / Perfetto trace of the spans and the memory (program/chrome_trace.hpp), as step 0.
std::string to_chrome_trace(const Result& result, const std::vector<program::Program>& programs);

}  // namespace tessera::sim
