// Internal to the cost model: times from a profile, and by a roofline where it has none. They say nothing about what computing hides of
// an exchange: exchanges are listed beside them, for a clock to play through.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "cost/cost_model.hpp"
#include "model/job.hpp"
#include "plan/stage_places.hpp"
#include "profile/profile.hpp"

namespace tessera::cost {

// Remembers what it has priced. Not thread-safe. The model, the cluster and the profile must outlive it.
class Measured {
 public:
  Measured(const model::ModelSpec& model, const cluster::ClusterSpec& cluster, model::Precision precision,
           const model::OptimizerSpec& optimizer, const profile::Profile& profile);

  // `repeat`: index into ModelSpec::repeats. Of recomputation the model's first and last block are left alone.
  BlockLoad block(int repeat, const plan::Worker& worker, const plan::Strategy& strategy, std::int64_t micro_batch);
  // Seconds of the step of so many parameters.
  double optimizer(std::int64_t parameters, const plan::Worker& worker) const;
  // Seconds of an exchange alone on its links.
  double exchange(const std::string& operation, std::int64_t bytes, int ranks, const cluster::Link& link, profile::Pace pace) const;
  double exchange(const model::Exchange& exchange, int ranks, const cluster::Link& link, profile::Pace pace) const;
  profile::Overlap overlap(const std::string& operation, int ranks, const cluster::Link& link) const;
  const profile::RowsSample* rows(const std::string& operation) const;
  // Of a CPU worker before it holds a tensor, and what it holds beyond tensors.
  double process_bytes() const;

 private:
  // A block without what depends on how its state is sharded.
  struct Timed {
    model::BlockCost cost;
    double saved_whole = 0;      // without recomputation
    double forward = 0;          // seconds, without exchanges
    double backward = 0;         // without recomputation
    double backward_weight = 0;  // of it, the weight half
    double again = 0;            // of recomputation
  };
  const Timed& timed(int repeat, const plan::Worker& worker, const model::BlockShard& shard);
  model::Recompute recomputed(int repeat, const plan::Strategy& strategy) const;

  const model::ModelSpec& model_;
  const cluster::ClusterSpec& cluster_;
  model::Precision precision_;
  model::OptimizerSpec optimizer_;
  const profile::Profile& profile_;
  std::map<std::tuple<int, plan::Worker, model::BlockShard>, Timed> timed_;
};

}  // namespace tessera::cost
