// Stages made of blocks.
#include <algorithm>

#include "plan/uniform_parts.hpp"

namespace tessera::plan {
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

std::vector<StageTime> stage_times(const Pricing& pricing, const std::vector<int>& layers) {
  const Transformer& model = pricing.model;
  const bool sparse = model.experts.count > 0;
  const int plain_layers = sparse ? model.experts.dense_layers : model.layers;
  const LayerTime plain = plain_layers > 0 ? block_time(pricing, pricing.blocks.plain) : LayerTime{};
  const LayerTime routed = sparse ? block_time(pricing, pricing.blocks.routed) : LayerTime{};
  const LayerTime head = once(block_time(pricing, pricing.blocks.head));
  const profile::Calibration& calibration = pricing.kernels.calibration();
  std::vector<StageTime> out(layers.size());
  int seen = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const int dense = std::clamp(plain_layers - seen, 0, layers[i]);
    seen += layers[i];
    if (dense > 0) add(out[i], plain, dense);
    if (dense < layers[i]) add(out[i], routed, layers[i] - dense);
    out[i].forward.host += calibration.micro_batch_host + calibration.layer_host * layers[i];
  }
  add(out.front(), once(block_time(pricing, pricing.blocks.embedding)), 1);
  add(out.back(), head, 1);
  if (model.predicts_two) {
    add(out.back(), sparse ? routed : plain, 1);
    add(out.back(), head, 1);
  }
  return out;
}

}  // namespace tessera::plan
