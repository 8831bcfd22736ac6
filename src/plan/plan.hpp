// A plan: which block runs where and how. A versioned JSON file that people can read and edit.
#pragma once

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "model/model.hpp"

namespace tessera::plan {

// How a block is cut among the ranks of its stage. The stage has dp × cp × tp ranks.
struct Strategy {
  int dp = 1;  // data parallel: replicas of the block, each of which computes samples of its own
  int tp = 1;  // tensor parallel: parts of each weight
  // ZeRO (Rajbhandari et al. 2020): 1 shards the optimizer state over dp × cp, 2 the gradients too, 3 the parameters too.
  int zero = 0;
  model::Recompute recompute = model::Recompute::none;
  bool sequence_parallel = false;  // with tp > 1
  int cp = 1;                      // context parallel: parts of each sequence
  model::ContextKind context = model::ContextKind::ring;
  int ep = 1;  // expert parallel: the experts are spread over ep of the dp × cp ranks
  // The host's memory holds the optimizer's state, and its CPU runs the step. On CPU workers, whose memory is the host's, that changes
  // nothing: it counts as theirs.
  bool offload_optimizer = false;
  // Hybrid sharding (MiCS, Zhang et al. 2022; HYBRID_SHARD of PyTorch FSDP): ZeRO shards within each group of so many consecutive ones of
  // the dp × cp ranks, and every group holds a copy. With dp 32, tp 1 and shards 8 on nodes of 8 devices, each node shards, and the four
  // nodes hold the same. 0: one group of all dp × cp ranks.
  int shards = 0;
  // With tp > 1 and experts. True: an expert stands whole on one rank, and ep spreads the experts over the dp × cp × tp ranks (expert
  // tensor parallelism 1 of Megatron-LM). False: tp cuts experts too.
  bool whole_experts = false;
  int ranks() const { return dp * cp * tp; }
  int copies() const { return dp * cp; }  // ranks that hold the same weights, unless ZeRO shards them
  // Ranks among which ZeRO divides what it shards; 1 without ZeRO.
  int sharded_over() const { return zero == 0 ? 1 : shards > 0 ? shards : copies(); }
  int expert_tp() const { return whole_experts ? 1 : tp; }                         // parts of each expert
  int expert_copies() const { return std::max(1, ranks() / (expert_tp() * ep)); }  // ranks that hold the same experts
  // sharded_over() for the weights of experts.
  int experts_sharded_over() const { return zero == 0 ? 1 : std::clamp(sharded_over() * tp / (expert_tp() * ep), 1, expert_copies()); }
  bool same_layout(const Strategy& other) const { return dp == other.dp && cp == other.cp && tp == other.tp; }
  auto operator<=>(const Strategy&) const = default;
};
std::string to_text(const Strategy& strategy);  // "dp 2 x tp 4, sequence parallel, zero 1"

// Consecutive blocks of a stage that have the same strategy: blocks [first, last) of the flattened model.
struct StrategyRun {
  int first = 0;
  int last = 0;
  Strategy strategy;
  Where where = {};  // in the plan file, when the plan was read from one; likewise in the structs below
};

// What the next `ranks` ranks of a stage take of each micro-batch. Their replicas divide `samples` evenly: with tp 1, the shares {2, 6},
// {2, 2} give three samples to each of the first two ranks of a stage and one to each of the last two.
struct Share {
  int ranks = 0;
  std::int64_t samples = 0;
  bool operator==(const Share&) const = default;
};

// A pipeline stage: consecutive blocks on some ranks. Rank order within a stage: dp outer, then cp, tp inner
// (ranks[(d * cp + c) * tp + t] is data-parallel index d, context-parallel index c, tensor-parallel index t). With interleaved
// and V-shaped schedules the same ranks, in the same order, hold several stages.
struct Stage {
  std::vector<int> ranks;
  std::vector<StrategyRun> runs;   // consecutive, covering the stage's blocks
  std::vector<Share> shares = {};  // where faster devices take more samples; empty: all replicas take the same number
  Where where = {};
  int first_block() const { return runs.front().first; }
  int last_block() const { return runs.back().last; }
  int width() const { return static_cast<int>(ranks.size()); }
  const Strategy& strategy_of(int block) const;  // of one of its blocks
};

// The device that a rank runs on.
struct RankPlace {
  int group = 0;    // index into ClusterSpec::groups
  int node = 0;     // within the group
  int device = 0;   // within the node
  int threads = 1;  // CPU workers: compute threads
  Where where = {};
};

// Pipeline schedules, and which stages each of p pipeline ranks holds.
//   one_f_one_b, gpipe      One stage a rank.
//   interleaved             Narayanan et al. 2021: v stages a rank; rank i holds stages i, i + p, i + 2p, ...
//   zb_h1, zb_h2            Qi et al. 2023: one stage a rank; each backward pass is split into two halves.
//   zb_v, dualpipe_v        Qi et al. 2024, DeepSeek 2025: rank i holds stages i and 2p - 1 - i.
enum class Schedule { one_f_one_b, gpipe, interleaved, zb_h1, zb_h2, zb_v, dualpipe_v };
const char* name_of(Schedule schedule);

// A backward pass as a whole, or its halves: the gradient of the inputs, which the stage before waits for, and the gradient
// of the weights, which nobody waits for until the step ends (Qi et al. 2023, arXiv 2401.10241).
enum class Backward { whole, input, weight };

// One entry of the order in which a rank works through its micro-batches.
struct Slot {
  bool forward = true;
  int micro_batch = 0;
  int chunk = 0;                    // which of the rank's stages, in model order
  Backward part = Backward::whole;  // of a backward pass
  // Overlaps with the next slot (a forward with a backward pass, as in DualPipe): both begin when the inputs of both are there, and both
  // send when both have ended.
  bool with_next = false;
  bool operator==(const Slot&) const = default;
};

// What each pipeline rank does in a step, by pipeline rank.
using Orders = std::vector<std::vector<Slot>>;

// How samples of different lengths (model::LengthSpec) are dealt to the ranks of the plan's one stage (plan/uneven_batch.hpp). Seconds are
// of a forward and a backward pass.
struct Lengths {
  // Among so many consecutive ranks a pass may cut its sequences; seconds of their exchanges for each token that a rank holds.
  struct Group {
    int degree = 1;
    double exchange = 0;
    bool operator==(const Group&) const = default;
  };
  std::vector<Group> groups;  // ascending; the strategy's cp is the last
  double pass = 0;            // whatever it holds
  double token = 0;           // of a token, without attention
  double pair = 0;            // of a query and a key
  // Tokens of a sample, as the mean over those that the plan was priced by. 0: it was priced as if all had model.seq.
  double mean = 0;
};

// What the simulator says of a plan.
struct Prediction {
  Seconds step;
  // Terms of the step by name, of the rank that computes longest; they add up to the step.
  std::vector<std::pair<std::string, Seconds>> parts;
  std::vector<Bytes> memory;  // peak resident bytes by rank, everything counted in
  double bubble = 0;          // idle share of the step, as the mean of all ranks; 0..1
};

// Parameter servers in the process of a rank, each a thread of its own.
struct Server {
  int rank = 0;
  int threads = 1;
  Where where = {};
};

struct Plan {
  std::string model_fingerprint;
  std::string cluster_fingerprint;
  model::Precision precision = model::Precision::f32;
  std::int64_t global_batch = 1;   // samples
  std::int64_t micro_batches = 1;  // of a step; each is cut among the replicas of a stage
  Schedule schedule = Schedule::one_f_one_b;
  Orders order;                         // the plan's own order of passes; empty: that of `schedule`, which places the stages in any case
  std::vector<RankPlace> ranks;         // by rank
  std::vector<Stage> stages;            // in model order
  Bytes bucket_size = Bytes(25 << 20);  // gradients are reduced in buckets of about this size
  // Gradients are reduced, and parameters stepped, while the next step begins. Each bucket is ready before the first pass that uses its
  // parameters, so the losses are the same as without. Gradients cannot be clipped: their norm is known only after all are reduced.
  bool delayed_exchange = false;
  // With delayed_exchange: the share of the gradients, 0..1, that are reduced as soon as they are complete, highest blocks first. The
  // others are reduced after the last backward pass in the order in which the next step needs them, lowest blocks first. Less than 1 is
  // faster where the network cannot keep up with the backward pass.
  double exchanged_early = 1;
  // With delayed_exchange, 1: gradients are reduced during all of the next step, and its parameters stepped with them at its end: each
  // step computes with parameters that miss the gradient of the step before (as in PipeDream-2BW, Narayanan et al. 2021, arXiv
  // 2006.09503, section 3.1). Losses are others than without. ZeRO 0 and 1 alone.
  int staleness = 0;
  // Where rows of the model's tables lie on parameter servers: those of a step are pulled beside the step before it, whose gradients they
  // miss, as the servers' tables must allow (asynchronous, staleness 1 or more).
  bool rows_ahead = false;
  // Who holds these tables, where the job names no servers; ascending by rank. Servers of one rank take turns on its processors.
  std::vector<Server> servers = {};
  // For samples of different lengths: a micro-batch of the plan then says how many tokens a rank holds at once, and each step has as many
  // passes as its samples need.
  std::optional<Lengths> lengths = std::nullopt;
  std::optional<Prediction> predicted;
  Where where = {};

  int world_size() const { return static_cast<int>(ranks.size()); }
  std::int64_t samples() const { return global_batch / micro_batches; }  // of one micro-batch over a whole stage
  // Samples of one micro-batch on one rank of a stage with dp replicas, when all replicas take the same number.
  std::int64_t micro_batch_size(int dp) const { return global_batch / (micro_batches * dp); }
  // The shares of a stage; one share of all its ranks when it has none.
  std::vector<Share> shares_of(const Stage& stage) const {
    return stage.shares.empty() ? std::vector<Share>{{stage.width(), samples()}} : stage.shares;
  }
  // Samples of one micro-batch on the ranks of the first stage, all of whose runs must have the same dp, cp and tp: "6 or 2 samples".
  std::string micro_batch_text() const;
  std::string schedule_text() const;  // "1f1b, gradient exchange delayed", "zb-v in an order of its own, steps overlap"
  std::string servers_text() const;   // of its parameter servers: "1 thread with rank 0, 2 threads with rank 3"
  std::string threads_text() const;   // of a CPU worker, over all: "4 threads", "8 or 4 threads"
  // How many of a micro-batch's `items` belong to the first `ranks` ranks of a stage; every sample has the same number of items. A stage
  // of 4 ranks without shares: items_before(stage, 1, 8) is 2.
  std::int64_t items_before(const Stage& stage, std::int64_t ranks, std::int64_t items) const;
  // Of a sample: model.seq, or the mean of those that the plan was priced by; 1 where the model has no sequences.
  double tokens_of_sample(const model::ModelSpec& model) const;
};

// Throws invalid_config, which names the field, its file and line, and what would be valid, when degrees do not divide or do not make the
// ranks of their stage, blocks are left out or doubled, blocks that share a parameter on the same ranks have different tp, two ranks use
// one device, or the plan was made for another model or cluster. Stages may have any width, and each run of blocks any strategy. What
// passes can be trained, where the trainer has blocks for the model (model::check_has_blocks) and cuts them (check_trained).
void check(const Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster);
// Also that the plan is for the job's global batch and precision.
void check(const Plan& plan, const model::JobSpec& job, const cluster::ClusterSpec& cluster);
// Throws invalid_config where a plan that passes check() is for another trainer, on accelerators: it cuts blocks that this one computes
// whole, on each of its devices.
void check_trained(const Plan& plan, const model::ModelSpec& model);

std::string to_json(const Plan& plan);
Plan read_plan(const ConfigNode& node);
Plan load_plan(const std::filesystem::path& path);

}  // namespace tessera::plan
