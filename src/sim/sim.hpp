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
#include "plan/schedule/schedule.hpp"
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

// What a rank spends its time on.
struct Spent {
  // Computing. `backward` is without the forward passes that recomputation repeats.
  Seconds forward, backward, recompute, optimizer;
  // Exposed communication: exchanges inside of passes, messages between stages, gradients with the step's scalars, and parameters
  // that are gathered after a sharded step.
  Seconds in_passes, messages, gradients, parameters;
};

struct RankResult {
  Seconds busy;     // computing
  Seconds exposed;  // communicating and not computing
  Seconds idle;     // neither: waiting for other ranks. The three add up to the step
  Seconds passes;   // from the begin of its first forward to the end of its last backward pass
  Bytes peak_memory;
  Spent spent = {};  // its first four members add up to `busy`, the others to `exposed`
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
  std::vector<Span> spans;          // by begin time
  std::vector<MemoryPoint> memory;  // by time
  // Shares of all ranks' time; they add up to 1.
  double utilization = 0;  // computing
  double exposed = 0;      // exposed communication
  double bubble = 0;       // idle
  // Idle share of the rank that takes longest over its passes, from its first to its last: what papers on schedules call the
  // bubble rate (Qi et al. 2023), for ranks that start and end one after the other lose nothing in a chain of steps.
  double pipeline_bubble = 0;
};

// Computation runs in each program's order; communication beside it, in order within a group or between two peers, from the
// moment that all who take part have come to it. Transfers that meet on a link share it evenly; computation beside a
// collective is slowed down as the profile says. The same inputs give the same result. Throws internal when the programs
// deadlock. `programs` are those of all ranks, by rank.
Result run(const std::vector<program::Program>& programs, const plan::Plan& plan, const model::ModelSpec& model,
           const model::TrainSpec& train, const cluster::ClusterSpec& cluster, const profile::Profile& profile);

// Runs programs by given times of a stage, to study schedules with. Collectives and optimizer steps take no time; the activations of one
// micro-batch in one stage count as one byte.
Result run(const std::vector<program::Program>& programs, const plan::StageTimes& times);

// A plan from beginning to end: compiles, checks and runs its programs. Where the replicas and the tensor-parallel peers of every stage do
// the same on equal devices and links, one rank of each stage is simulated for all of them: `programs`, `spans` and `memory` are then those
// of these ranks, `result.ranks` is of all. So thousands of ranks take as long as a few. `plan` must have passed plan::check. Throws
// invalid_config where exchanges are to be played through (cost::CostModel::plays_exchanges) and stages are not cut alike.
struct Simulation {
  std::vector<program::Program> programs;
  Result result;
};
enum class Simulated { one_of_alike, every_rank };  // every_rank: also where ranks do the same, so that all of them have spans
Simulation simulate(const plan::Plan& plan, cost::CostModel& cost_model, Simulated which = Simulated::one_of_alike);
Simulation simulate(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train,
                    const cluster::ClusterSpec& cluster, const profile::Profile& profile, Simulated which = Simulated::one_of_alike);

// The simulated step of a plan. `parts` are those of the rank that computes longest, and add up to the step. Takes a fraction of a
// millisecond to milliseconds.
plan::Prediction predict(const plan::Plan& plan, cost::CostModel& cost_model);

// Chrome / Perfetto trace of the spans and the memory (program/chrome_trace.hpp), as step 0.
std::string to_chrome_trace(const Result& result, const std::vector<program::Program>& programs);

}  // namespace tessera::sim
