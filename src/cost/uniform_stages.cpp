// Stages made of blocks.
#include <algorithm>

#include "cost/uniform_parts.hpp"

namespace tessera::cost {
namespace {

void add(StageTime& stage, const LayerTime& layer, double count) {
  stage.forward += layer.forward * count;
  stage.backward += layer.backward * count;
  stage.again += layer.again * count;
}

// Embedding and head are never computed again.
LayerTime once(LayerTime block) {
  block.again = {};
  return block;
}

}  // namespace

BlockTimes block_times(const Pricing& pricing) {
  const Transformer& model = pricing.model;
  const bool sparse = model.experts.count > 0;
  BlockTimes out;
  if (!sparse || model.experts.dense_layers > 0) out.plain = block_time(pricing, pricing.blocks.plain);
  if (sparse) out.routed = block_time(pricing, pricing.blocks.routed);
  out.embedding = once(block_time(pricing, pricing.blocks.embedding));
  out.head = once(block_time(pricing, pricing.blocks.head));
  return out;
}

std::vector<StageTime> stage_times(const Pricing& pricing, const std::vector<int>& layers) {
  return stage_times(pricing, block_times(pricing), layers);
}

std::vector<StageTime> stage_times(const Pricing& pricing, const BlockTimes& blocks, const std::vector<int>& layers) {
  const Transformer& model = pricing.model;
  const bool sparse = model.experts.count > 0;
  const int plain_layers = sparse ? model.experts.dense_layers : model.layers;
  const profile::Calibration& calibration = pricing.kernels.calibration();
  std::vector<StageTime> out(layers.size());
  int seen = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const int dense = std::clamp(plain_layers - seen, 0, layers[i]);
    seen += layers[i];
    if (dense > 0) add(out[i], blocks.plain, dense);
    if (dense < layers[i]) add(out[i], blocks.routed, layers[i] - dense);
    out[i].forward.host += calibration.micro_batch_host + calibration.layer_host * layers[i];
  }
  add(out.front(), blocks.embedding, 1);
  add(out.back(), blocks.head, 1);
  if (model.predicts_two) {
    add(out.back(), sparse ? blocks.routed : blocks.plain, 1);
    add(out.back(), blocks.head, 1);
  }
  return out;
}

}  // namespace tessera::cost
