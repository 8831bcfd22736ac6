// Internal to the planner, and what the simulator prices instructions with: what blocks, messages and steps cost.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "cluster/cluster.hpp"
#include "cost/cost.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"
#include "profile/profile.hpp"

namespace tessera::cost {

// One block on one rank for one micro-batch.
struct BlockPrice {
  model::BlockCost cost;        // of the shard as it runs (with its recomputation)
  Bytes saved_whole;            // what a recomputed block saves while it runs backward
  double forward = 0;           // seconds of computing
  double backward = 0;          // with the forward pass that recomputation repeats
  double recompute = 0;         // the part of `backward` that is this repeated pass
  int forward_all_reduces = 0;  // tensor-parallel, on the critical path, each of cost.all_reduce_size
  int backward_all_reduces = 0;
};

// Consecutive equal blocks of a stage.
struct BlockSegment {
  int repeat = 0;  // index into ModelSpec::repeats
  int first = 0;
  int count = 0;
  model::Recompute recompute = model::Recompute::none;
};

// Where a rank computes.
struct Place {
  int group = 0;
  int threads = 1;
  int neighbours = 1;  // workers on the same host; 1 for accelerators
  auto operator<=>(const Place&) const = default;
};

// Remembers what it has priced. Not thread-safe. The arguments must outlive it.
class Prices {
 public:
  Prices(const model::ModelSpec& model, const model::TrainSpec& train, const cluster::ClusterSpec& cluster,
         const profile::Profile& profile);

  const BlockPrice& block(int repeat, const model::BlockShard& shard, const Place& place);
  double optimizer(std::int64_t parameters, const Place& place) const;
  // Alone on its links.
  double collective(const std::string& operation, std::int64_t bytes, int ranks, const cluster::Link& link,
                    profile::Pace pace = profile::Pace::alone) const;
  profile::Overlap overlap(const std::string& operation, int ranks, const cluster::Link& link) const {
    return profile::overlap_of(profile_, operation, ranks, link);
  }

  // Of a run of blocks [first, last) under one recomputation; the model's first and last block are never recomputed.
  std::vector<BlockSegment> segments(int first, int last, model::Recompute recompute) const;
  std::vector<BlockSegment> segments(const plan::Stage& stage) const;
  // Parameters that a rank of a stage with blocks [first, last) holds, a tied one once.
  std::int64_t parameters(int first, int last, int tensor_parallel) const;

  const model::ModelSpec& model() const { return model_; }
  const model::TrainSpec& train() const { return train_; }
  const cluster::ClusterSpec& cluster() const { return cluster_; }
  const profile::Profile& profile() const { return profile_; }
  int block_count() const { return static_cast<int>(repeat_of_.size()); }

 private:
  using Key = std::tuple<int, std::int64_t, int, int, int, Place>;

  const model::ModelSpec& model_;
  const model::TrainSpec& train_;
  const cluster::ClusterSpec& cluster_;
  const profile::Profile& profile_;
  std::vector<int> repeat_of_;        // by block
  std::map<std::string, int> owner_;  // block of each parameter that others are tied to
  std::map<Key, BlockPrice> blocks_;
  std::string optimizer_kind_;
};

std::vector<Place> places_of(const plan::Plan& plan, const cluster::ClusterSpec& cluster);
// The slowest link among these ranks.
const cluster::Link& link_among(const plan::Plan& plan, const cluster::ClusterSpec& cluster, const std::vector<int>& ranks);

// What decides the memory of a stage's ranks.
struct StageShape {
  int first = 0;
  int last = 0;
  int stage = 0;
  int stage_count = 1;
  plan::Strategy strategy;
  std::int64_t micro_batch = 1;
  std::int64_t micro_batches = 1;
  plan::Schedule schedule = plan::Schedule::one_f_one_b;
  model::Precision precision = model::Precision::f32;
  Bytes bucket;
  Place place;
};
// `in_flight`: micro-batches whose activations are held at once. The peak is fixed + in_flight x saved + workspace.
struct StageBytes {
  std::int64_t fixed = 0;      // the five below together
  std::int64_t saved = 0;      // activations of one micro-batch
  std::int64_t workspace = 0;  // while a block computes
  std::int64_t process = 0;    // before it holds a tensor
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;  // its state; master weights where the computation has others
  std::int64_t buffers = 0;    // of messages, reductions and samples
};
StageBytes stage_bytes(const StageShape& shape, const std::vector<BlockSegment>& segments, Prices& prices);
StageShape shape_of(const plan::Plan& plan, int stage, const Place& place, std::int64_t micro_batch);
// Peak bytes by rank.
std::vector<Bytes> memory_of(const plan::Plan& plan, Prices& prices);

}  // namespace tessera::cost
