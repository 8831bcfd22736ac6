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
#include "plan/schedule/slot.hpp"

namespace tessera::plan {

// How a block is cut. dp × cp × tp = the number of ranks of its stage; experts are spread over ep of the dp × cp ranks.
struct Strategy {
  int dp = 1;
  int tp = 1;
  // ZeRO (Rajbhandari et al. 2020): 1 shards the optimizer state over dp × cp, 2 the gradients too, 3 the parameters too.
  int zero = 0;
  model::Recompute recompute = model::Recompute::none;
  bool sequence_parallel = false;  // with tp > 1
  int cp = 1;
  model::ContextKind context = model::ContextKind::ring;
  int ep = 1;
  bool offload_optimizer = false;  // the optimizer's state and step are on the host's CPU
  // ZeRO shards over so many consecutive ones of the dp × cp ranks, and groups of as many hold copies (hybrid sharding; MiCS, Zhang et
  // al. 2022): with dp 32, tp 1 and shards 8 each node of 8 devices shards, and four nodes hold the same. 0: over all.
  int shards = 0;
  // With tp and experts: an expert stands whole on one rank, and experts are spread over ep of the dp × cp × tp ranks (expert tensor
  // parallelism 1 of Megatron-LM). Otherwise tp cuts experts too.
  bool whole_experts = false;
  int ranks() const { return dp * cp * tp; }
  int copies() const { return dp * cp; }  // ranks that hold the same weights, unless zero cuts them
  int sharded_over() const { return zero == 0 ? 1 : shards > 0 ? shards : copies(); }
  int expert_tp() const { return whole_experts ? 1 : tp; }
  int expert_copies() const { return std::max(1, ranks() / (expert_tp() * ep)); }  // ranks that hold the same experts
  // Of these, those over which ZeRO shards them.
  int experts_sharded_over() const { return zero == 0 ? 1 : std::clamp(sharded_over() * tp / (expert_tp() * ep), 1, expert_copies()); }
  bool same_layout(const Strategy& other) const { return dp == other.dp && cp == other.cp && tp == other.tp; }
  bool operator==(const Strategy&) const = default;
};
std::string to_text(const Strategy& strategy);  // "dp 2 x tp 4, sequence parallel, zero 1"

// Blocks [first, last) of the flattened model with one strategy.
struct StrategyRun {
  int first = 0;
  int last = 0;
  Strategy strategy;
  Where where = {};  // in the plan file, when it was read from one; so in the structs below
};

// The next `ranks` ranks of a stage take `samples` of each micro-batch, evenly among their replicas.
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
  std::vector<Share> shares = {};  // of the batch, where faster devices take more of it; empty: all replicas the same
  Where where = {};
  int first_block() const { return runs.front().first; }
  int last_block() const { return runs.back().last; }
  int width() const { return static_cast<int>(ranks.size()); }
  const Strategy& strategy_of(int block) const;  // of one of its blocks
};

// What a rank stands on.
struct RankPlace {
  int group = 0;    // index into ClusterSpec::groups
  int node = 0;     // within the group
  int device = 0;   // within the node
  int threads = 1;  // CPU workers: compute threads
  Where where = {};
};

// one_f_one_b, gpipe: a stage per rank. interleaved (Narayanan et al. 2021): v stages per rank, rank i holds stages i, i + p,
// i + 2p, ... zb_h1, zb_h2 (Qi et al. 2023): backward split in two. zb_v (Qi et al. 2024) and dualpipe_v (DeepSeek 2025): rank i
// holds stages i and 2p - 1 - i.
enum class Schedule { one_f_one_b, gpipe, interleaved, zb_h1, zb_h2, zb_v, dualpipe_v };
const char* name_of(Schedule schedule);

struct Prediction {
  Seconds step;
  std::vector<std::pair<std::string, Seconds>> parts;  // named terms of the step on the critical rank
  std::vector<Bytes> memory;                           // peak resident bytes by rank, everything counted in
  double bubble = 0;                                   // share of the step in which the ranks stand idle, 0..1
};

struct Plan {
  std::string model_fingerprint;
  std::string cluster_fingerprint;
  model::Precision precision = model::Precision::f32;
  std::int64_t global_batch = 1;   // samples
  std::int64_t micro_batches = 1;  // of a step; each is cut among the replicas of a stage
  Schedule schedule = Schedule::one_f_one_b;
  Orders order;                         // a schedule of one's own, on the stages as `schedule` places them; empty: that of `schedule`
  std::vector<RankPlace> ranks;         // by rank
  std::vector<Stage> stages;            // in model order
  Bytes bucket_size = Bytes(25 << 20);  // gradients are reduced in buckets of about this size
  // Gradients are exchanged, and parameters stepped, while the next step begins: each bucket up to the first use of its parameters
  // there. The same numbers as without; but a norm over all gradients comes too late to clip them by.
  bool delayed_exchange = false;
  // Of a delayed exchange, this share of the gradients leaves as they become complete, highest blocks first; the rest after the last
  // of them, as the next step needs them, lowest blocks first. 0..1; less than 1 where the network is slow beside the backward pass.
  double exchanged_early = 1;
  std::optional<Prediction> predicted;
  Where where = {};

  int world_size() const { return static_cast<int>(ranks.size()); }
  std::int64_t samples() const { return global_batch / micro_batches; }  // of one micro-batch over a whole stage
  // Samples of one micro-batch on one rank of a stage of data-parallel width dp, where all have the same.
  std::int64_t micro_batch_size(int dp) const { return global_batch / (micro_batches * dp); }
  // Those of a stage, one for all ranks where it names none.
  std::vector<Share> shares_of(const Stage& stage) const {
    return stage.shares.empty() ? std::vector<Share>{{stage.width(), samples()}} : stage.shares;
  }
  // Samples of one micro-batch on a rank of a stage (index into Stage::ranks) whose runs are all cut alike.
  std::int64_t micro_batch_size_at(const Stage& stage, int index) const;
  // The same on the ranks of the first stage, in words: "4 samples", "6 or 2 samples".
  std::string micro_batch_text() const;
  std::string schedule_text() const;  // "1f1b", "1f1b, gradient exchange delayed"
  std::string threads_text() const;   // of a CPU worker, over all: "4 threads", "8 or 4 threads"
  // Of `items` of a micro-batch, the same number for each sample: those that the first `ranks` ranks of a stage take.
  std::int64_t items_before(const Stage& stage, std::int64_t ranks, std::int64_t items) const;
};

// Throws invalid_config naming the field, its file and line, and what would be valid: degrees that do not divide or are not
// those of the stage's ranks, blocks left out or doubled, ranks used twice, a fingerprint of another model or cluster. Stages may
// have any width, and runs of blocks in a stage any strategies. Not all of it can be trained: check_trainable in trainable.hpp.
void check(const Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster);
// Also that the plan is for the job's global batch and precision.
void check(const Plan& plan, const model::JobSpec& job, const cluster::ClusterSpec& cluster);

std::string to_json(const Plan& plan);
Plan read_plan(const ConfigNode& node);
Plan load_plan(const std::filesystem::path& path);

}  // namespace tessera::plan
