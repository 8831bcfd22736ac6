// The best plan of any model of blocks on devices of one or several kinds: every block its own strategy, stages of any depth,
// each kind of device its own width of stages, or several kinds side by side in each stage with a share of the batch each. Exact in
// its space: for each outer choice (the order, the stage width and the placement of the groups, which of them stand side by side
// and their shares, number of micro-batches, schedule) dynamic programming with Pareto fronts inside the stages (time against memory) and
// over them (slowest stage against the time to fill the pipeline); outer choices are ruled out by a bound that leaves memory aside.
// Where ranks have several stages each, the blocks are cut in every way if those are few, or else as evenly as can be and from there on as
// long as moving a block makes the step shorter; for each cut the fronts of all ranks are exact.
// In a uniform space the degrees belong to the outer choice, and the simulator prices what the dynamic programming finds.
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

// How many ranks stand on each working node of a group.
struct NodeRanks {
  int count = 1;
  int threads = 0;           // of each CPU worker; 0: ranks are devices
  int most_nodes = 1 << 30;  // that work
};

// `always`: the search leaves out the degrees that do not divide a block's sequence.
enum class SequenceParallel { never, where_it_divides, always };

// What the search may use.
struct BlockSpace {
  GivenDegrees given = {};
  std::vector<int> zero = {0, 1, 2, 3};
  std::vector<model::Recompute> recompute = {model::Recompute::none, model::Recompute::selective, model::Recompute::full};
  // Interleaved and V-shaped ones put several stages on a rank; in pipelines over several groups a uniform space alone has them.
  std::vector<plan::Schedule> schedules = {plan::Schedule::one_f_one_b, plan::Schedule::zb_h1, plan::Schedule::zb_h2,
                                           plan::Schedule::interleaved, plan::Schedule::zb_v};
  SequenceParallel sequence_parallel = SequenceParallel::where_it_divides;  // of blocks that tensor parallelism cuts
  int most_tensor = 1 << 30;
  bool whole_blocks = false;  // blocks that nn does not cut have tp 1, also beside others that are cut (plan::stands_whole)
  int most_context = 64;
  bool experts_cross_hosts = false;                // blocks with experts spread them over more ranks than a host has
  std::optional<model::ContextKind> context = {};  // of context parallelism; no value: either
  int most_stages = 1 << 30;
  bool offload = true;       // optimizer states may move to the host
  bool mixed_groups = true;  // several groups in one plan, and in one stage, each with its share of the batch
  // Nodes of a group may be left out, its last ones: of a group alone any number; beside other groups any, or all but a round number, as
  // there is room for in a list. Otherwise every group of a plan works as a whole.
  bool idle_nodes = true;
  std::vector<int> groups = {};  // of the cluster, that may be used; empty: all
  // By group of the cluster: the ways to deal a node to ranks. Of a group without any, and where this is empty: a rank on each device.
  std::vector<std::vector<NodeRanks>> node_ranks = {};
  // False: ZeRO may also shard over the replicas that one domain of the inside link holds, with copies across; all stages of a group may
  // stand on every one of its nodes, so that only replicas cross the network; and the parts of a block on different nodes (domains of the
  // inside link) and its replicas together, in a cluster of one group, for stages of 2 to 4 domains in which all blocks are cut by tensor
  // parallelism. True: every block of a plan that is not whole has the same dp, tp, cp and zero, and every stage as many ranks: what can be
  // simulated where exchanges are played through (cost::CostModel::plays_exchanges), and what the trainer runs. Tensor parallelism may
  // leave the domain of the inside link; groups side by side hold replicas of the whole model.
  bool uniform = false;
  // Of a uniform space: pipelines may also run their passes in orders made for their stages' times (plan::tuned_orders).
  bool own_orders = false;
  double memory = 1;  // share of what devices have for a plan
};

struct BlockProblem {
  const model::ModelSpec& model;
  const cluster::ClusterSpec& cluster;
  model::Precision precision = model::Precision::bf16;
  std::int64_t global_batch = 1;  // samples
  bool rows_ahead = false;        // of all plans: plan::Plan's
  bool delayed_exchange = false;  // likewise, of the best plans of a uniform space, which are priced so before one is chosen
  BlockSpace space = {};
  double tolerance = 0;  // no plan of the space is faster than the answer by more than this part; 0: the optimum
  // Blocks' options that a rough and then an exact search may try before the best so far is returned with its bound. The same answer
  // on any machine. 0: no limit.
  std::int64_t effort = 0;
  // The same by the clock, from the call on; a search without any plan by then goes on until it has one. 0: no limit.
  double seconds = 0;
  bool give_up = false;                     // the effort, and the clock, also end a search that has found nothing
  const std::atomic<bool>* stop = nullptr;  // set: the search ends soon, also where it has found nothing
  Watch* watch = nullptr;                   // is told how far the search is
  int threads = 0;                          // 0: one per core
  int top = 0;                              // further plans: the best of other outer choices; in a uniform space, of other degrees
  const Clock* clock = &real_clock();
  // Of devices whose times no calibration says; nullptr: nothing is measured.
  model::OptimizerSpec optimizer = {};
  const profile::Profile* profile = nullptr;
};

struct BlockAnswer {
  std::vector<plan::Plan> plans;  // with predictions, fastest first; empty when nothing fits
  // Seconds; no plan of the space is faster. 0 where time ran out early, and in a uniform space.
  double bound = 0;
  std::int64_t considered = 0;  // outer choices that there was time for
};

// The same answer whatever the number of threads, unless the clock or `stop` ends it. Throws invalid_config when no width divides.
BlockAnswer search(const BlockProblem& problem);

}  // namespace tessera::search
