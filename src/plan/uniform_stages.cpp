// Embedding, head, and stages made of them and of layers.
#include <algorithm>

#include "plan/uniform_parts.hpp"

namespace tessera::plan {
namespace {

using profile::Collective;
using profile::Format;

struct Ends {
  PassTime forward;
  PassTime backward;
};

Ends embedding(const Pricing& p) {
  const double bytes = 2 * p.tokens() * static_cast<double>(p.model.hidden);
  Ends out;
  out.forward.elementwise = p.kernels.move(3 * bytes);
  out.backward.elementwise = p.kernels.move(4 * bytes);
  out.forward.tensor_exchange = p.exchanges.collective(Collective::all_reduce, bytes, {p.plan.tp, 1});
  return out;
}

// Logits in 16 bits, their softmax in 32.
Ends head(const Pricing& p) {
  const double tokens = p.tokens();
  const double hidden = static_cast<double>(p.model.hidden);
  const double columns = static_cast<double>(p.model.vocab) / p.plan.tp;
  Ends out;
  out.forward.products = p.kernels.product(1, tokens, columns, hidden, Format::bf16);
  out.forward.elementwise = p.kernels.move(10 * tokens * columns);
  out.backward.products = p.kernels.product(1, tokens, hidden, columns, Format::bf16) +
                          p.kernels.product(1, hidden, columns, tokens, Format::bf16, Pricing::kAccumulated);
  out.backward.elementwise = p.kernels.move(10 * tokens * columns);
  out.backward.tensor_exchange = p.exchanges.collective(Collective::all_reduce, 2 * tokens * hidden, {p.plan.tp, 1});
  return out;
}

void add(StageTime& stage, const LayerTime& layer, double count) {
  stage.forward += layer.forward * count;
  stage.backward += layer.backward * count;
  stage.again += layer.again * count;
}

void add(StageTime& stage, const Ends& ends) {
  stage.forward += ends.forward;
  stage.backward += ends.backward;
}

}  // namespace

std::vector<StageTime> stage_times(const Pricing& pricing, const std::vector<int>& layers) {
  const Transformer& model = pricing.model;
  const bool sparse = model.experts.count > 0;
  const int plain_layers = sparse ? model.experts.dense_layers : model.layers;
  const LayerTime plain = plain_layers > 0 ? layer_time(pricing, false) : LayerTime{};
  const LayerTime routed = sparse ? layer_time(pricing, true) : LayerTime{};
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
  add(out.front(), embedding(pricing));
  const Ends last = head(pricing);
  add(out.back(), last);
  if (model.predicts_two) {
    add(out.back(), sparse ? routed : plain, 1);
    add(out.back(), last);
  }
  return out;
}

}  // namespace tessera::plan
