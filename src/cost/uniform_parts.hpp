// Internal: what the parts of a uniform plan's price share.
#pragma once

#include <algorithm>
#include <vector>

#include "cost/uniform.hpp"
#include "profile/exchange_time.hpp"

namespace tessera::cost {

// A transformer's blocks as model::cost_of takes them, in the form that a software stack runs.
struct Blocks {
  model::BlockSpec embedding;
  model::BlockSpec plain;   // a layer without experts
  model::BlockSpec routed;  // one with experts, where the model has any
  model::BlockSpec head;
};
Blocks blocks_of(const Transformer& model, const profile::Calibration& calibration);
model::BlockShard shard_of(const UniformPlan& plan);

struct Pricing {
  Pricing(const UniformPlan& plan_, const Transformer& model_, const cluster::ResourceGroup& group, const profile::Calibration& calibration)
      : plan(plan_),
        model(model_),
        kernels(group.device, calibration, plan_.format),
        exchanges(group, calibration),
        blocks(blocks_of(model_, calibration)) {}

  const UniformPlan& plan;
  const Transformer& model;
  profile::Kernels kernels;
  profile::Exchanges exchanges;
  Blocks blocks;

  // Of a micro-batch on one rank.
  double tokens() const { return static_cast<double>(plan.micro_batch) * static_cast<double>(model.seq) / plan.cp; }
};

// Of an exchange of gradients or parameters, with so much computing of one micro-batch beside it: at least a share, and all that the
// computing cannot hide.
inline double waited(double exchange, double beside, const profile::Calibration& calibration) {
  return std::max(exchange * calibration.data_exposed, calibration.window > 0 ? exchange - calibration.window * beside : 0);
}

LayerTime block_time(const Pricing& pricing, const model::BlockSpec& block);

// One micro-batch on one stage.
struct StageTime {
  PassTime forward;
  PassTime backward;
  PassTime again;
  double forward_total() const { return forward.total(); }
  double backward_total() const { return backward.total() + again.total(); }
  double total() const { return forward_total() + backward_total(); }
};
std::vector<StageTime> stage_times(const Pricing& pricing, const std::vector<int>& layers);

// The times that stages are made of.
struct BlockTimes {
  LayerTime embedding;
  LayerTime plain;
  LayerTime routed;
  LayerTime head;
};
BlockTimes block_times(const Pricing& pricing);
std::vector<StageTime> stage_times(const Pricing& pricing, const BlockTimes& blocks, const std::vector<int>& layers);
// The price once its stages' times are known.
UniformPrice price_of(const Pricing& pricing, const cluster::ResourceGroup& group, const BlockTimes& blocks,
                      const std::vector<int>& layers);

// What one layer holds from its forward to its backward pass, in bytes.
struct SavedBytes {
  double plain = 0;
  double routed = 0;
};
SavedBytes saved_of(const Blocks& blocks, const Transformer& model, const UniformPlan& plan);
UniformMemory memory_of(const UniformPlan& plan, const Transformer& model, const SavedBytes& saved, const std::vector<int>& layers,
                        int stage);

}  // namespace tessera::cost
