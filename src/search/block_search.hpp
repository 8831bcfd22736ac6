// Finds the best plan of a model on devices of one or several kinds. Every block has its own strategy, stages have any depth, and kinds of
// device stand one after the other, each with its own stage width, or side by side in each stage, each with a share of the batch. The
// search is exact in its space. An outer choice fixes the order of the groups, their stage widths and placement, which groups stand side by
// side and their shares, the number of micro-batches and the schedule. For each outer choice, dynamic programming keeps Pareto fronts
// inside the stages (time against memory) and over them (slowest stage against the time to fill the pipeline); a bound that leaves memory
// aside rules outer choices out. Where ranks hold several stages, the blocks are cut in every way if those are few; otherwise the search
// starts from the evenest cut and moves blocks as long as the step becomes shorter. For each cut the fronts of all ranks are exact. In a
// uniform space the outer choice fixes the degrees too, and the simulator prices what the dynamic programming finds.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.hpp"
#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "profile/profile.hpp"
#include "search/watch.hpp"

namespace tessera::search {

// Degrees and counts that a user has given; 0: any. `experts` holds for blocks that have some.
struct GivenDegrees {
  int data = 0;
  int tensor = 0;
  int context = 0;
  int experts = 0;
  int stages = 0;  // under schedules of several stages a rank: pipeline ranks
  std::int64_t micro_batches = 0;
  int chunks = 0;  // stages of a rank under the interleaved schedule
  static bool allows(std::int64_t given, std::int64_t degree) { return given == 0 || given == degree; }
};

// The ranks on each node of a group that is in use.
struct NodeRanks {
  int count = 1;
  int threads = 0;           // of each CPU worker; 0: ranks are devices
  int most_nodes = 1 << 30;  // nodes of the group that may be used
};

// With `always`, degrees that do not divide a block's sequence are not searched.
enum class SequenceParallel { never, where_it_divides, always };

// What the search may use.
struct BlockSpace {
  GivenDegrees given = {};
  std::vector<int> zero = {0, 1, 2, 3};
  std::vector<model::Recompute> recompute = {model::Recompute::none, model::Recompute::selective, model::Recompute::full};
  // Pipelines over several groups have interleaved and V-shaped schedules only in a uniform space.
  std::vector<plan::Schedule> schedules = {plan::Schedule::one_f_one_b, plan::Schedule::zb_h1, plan::Schedule::zb_h2,
                                           plan::Schedule::interleaved, plan::Schedule::zb_v};
  SequenceParallel sequence_parallel = SequenceParallel::where_it_divides;  // of blocks that tensor parallelism cuts
  int most_tensor = 1 << 30;
  bool whole_blocks = false;  // blocks that the trainer does not cut have tp 1, also beside others that are cut (plan::stands_whole)
  int most_context = 64;
  bool experts_cross_hosts = false;                // experts may be spread over more ranks than a host has
  std::optional<model::ContextKind> context = {};  // of context parallelism; unset: either
  int most_stages = 1 << 30;
  bool offload = true;       // optimizer states may move to the host
  bool mixed_groups = true;  // several groups in one plan, and in one stage, each with its share of the batch
  // The last nodes of a group may stay idle: any number of them if the group is alone; beside other groups any number, or all but a round
  // number, as the limit on outer choices allows. False: a group is used as a whole or not at all.
  bool idle_nodes = true;
  std::vector<int> groups = {};  // of the cluster, which may be used; empty: all
  // By group of the cluster: the ways to divide a node among ranks. For a group without any, and if this is empty: a rank on each device.
  std::vector<std::vector<NodeRanks>> node_ranks = {};
  // False:
  //   - ZeRO may also shard over the replicas within one domain of the inside link, with copies across domains;
  //   - all stages of a group may stand on every one of its nodes, so that only replicas exchange over the network;
  //   - in a cluster of one group, stages of 2 to 4 domains in which all blocks have tp > 1 may have replicas inside a domain and tensor
  //     shards across domains.
  // True: every block of a plan that is not whole has the same dp, tp, cp and zero, and every stage equally many ranks. That is what the
  // trainer runs, and what can be simulated where the simulator plays exchanges (cost::CostModel::plays_exchanges). Tensor parallelism may
  // leave the domain of the inside link; groups side by side hold replicas of the whole model.
  bool uniform = false;
  // In a uniform space: pipelines may also run their passes in orders tuned to their stages' times (plan::tuned_orders).
  bool own_orders = false;
  double memory = 1;  // share of the devices' memory that a plan may use
};

struct BlockProblem {
  const model::ModelSpec& model;
  const cluster::ClusterSpec& cluster;
  model::Precision precision = model::Precision::bf16;
  std::int64_t global_batch = 1;  // samples
  bool rows_ahead = false;        // Plan::rows_ahead of all plans
  bool delayed_exchange = false;  // Plan::delayed_exchange of the best plans of a uniform space, applied before one is chosen
  BlockSpace space = {};
  double tolerance = 0;  // no plan of the space is faster than the answer by more than this share; 0: the optimum
  // The number of blocks' options that the rough and then the exact search may try; after that the best plan so far is returned with its
  // bound. Unlike `seconds`, it gives the same answer on any machine. 0: no limit.
  std::int64_t effort = 0;
  // A limit by the clock, counted from the call; a search that has no plan by then goes on until it has one. 0: no limit.
  double seconds = 0;
  bool give_up = false;                     // `effort` and `seconds` also end a search that has found nothing
  const std::atomic<bool>* stop = nullptr;  // once set, the search ends soon, even without a plan
  Watch* watch = nullptr;                   // receives the search's progress
  int threads = 0;                          // 0: one per core
  int top = 0;                              // further plans to return: the best of other outer choices, in a uniform space of other degrees
  const Clock* clock = &real_clock();
  // For devices without a calibration; nullptr: nothing was measured.
  model::OptimizerSpec optimizer = {};
  const profile::Profile* profile = nullptr;
};

struct BlockAnswer {
  std::vector<plan::Plan> plans;  // with predictions, fastest first; empty when nothing fits
  // No plan of the space is faster, in seconds. 0 if time ran out early, and in a uniform space.
  double bound = 0;
  std::int64_t considered = 0;  // outer choices looked at in the time there was
};

// The answer does not depend on the number of threads, unless the clock or `stop` ends the search. Throws invalid_config when no stage
// width divides.
BlockAnswer search(const BlockProblem& problem);

}  // namespace tessera::search
