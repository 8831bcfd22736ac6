#include <algorithm>

#include "cost/uniform_parts.hpp"

namespace tessera::cost {
namespace {

double saved(const model::BlockSpec& block, const UniformPlan& plan) {
  const double bytes = static_cast<double>(model::cost_of(block, shard_of(plan)).saved.value);
  return plan.again == Again::half ? bytes / 2 : bytes;
}

// Micro-batches' worth of a stage's layers that are held at once.
double in_flight(const UniformPlan& plan, int stage) {
  const double count = plan.micro_batches();
  const double depth = plan.pp;
  switch (plan.schedule) {
    case plan::Schedule::gpipe: return count;
    // The first stage holds 1 + (p - 1) / (p v) of a full pipeline (Narayanan et al. 2021, section 2.2).
    case plan::Schedule::interleaved: return std::min(count, depth - stage + (depth - 1) / plan.chunks);
    case plan::Schedule::zb_h2: return std::min(count, 2 * depth - 1 - 2.0 * stage);
    case plan::Schedule::zb_v:
    case plan::Schedule::dualpipe_v: return std::min(count, depth);
    case plan::Schedule::zb_h1:
    case plan::Schedule::one_f_one_b: break;
  }
  return std::min(count, depth - stage);
}

struct Bytes3 {
  double weights, gradients, optimizer;
};

// Mixed precision with AdamW: 16-bit weights, 32-bit gradients, master weights and two moments. 18 bytes in all.
Bytes3 state(double parameters, int zero, double shards) {
  return {parameters * 2 / (zero >= 3 ? shards : 1), parameters * 4 / (zero >= 2 ? shards : 1), parameters * 12 / (zero >= 1 ? shards : 1)};
}

}  // namespace

std::vector<std::pair<std::string, double>> UniformMemory::terms() const {
  return {{"weights", weights},
          {"gradients", gradients},
          {"optimizer state", optimizer},
          {"embedding and head", embedding},
          {"activations", activations},
          {"logits", logits},
          {"buffers", buffers}};
}

SavedBytes saved_of(const Blocks& blocks, const Transformer& model, const UniformPlan& plan) {
  const bool sparse = model.experts.count > 0;
  return {!sparse || model.experts.dense_layers > 0 ? saved(blocks.plain, plan) : 0, sparse ? saved(blocks.routed, plan) : 0};
}

UniformMemory memory_of(const UniformPlan& plan, const Transformer& model, const profile::Calibration& calibration, int stage) {
  return memory_of(plan, model, saved_of(blocks_of(model, calibration), model, plan), stage_layers(plan, model), stage);
}

UniformMemory memory_of(const UniformPlan& plan, const Transformer& model, const SavedBytes& kept, const std::vector<int>& layers,
                        int stage) {
  const int count = layers.at(static_cast<std::size_t>(stage));
  const double shards = plan.zero == 0 ? 1 : plan.shards > 0 ? plan.shards : plan.dp * plan.cp;
  double parameters = 0;
  int seen = 0;
  for (int i = 0; i < stage; ++i) seen += layers[static_cast<std::size_t>(i)];
  const int dense = model.experts.count > 0 ? std::clamp(model.experts.dense_layers - seen, 0, count) : count;
  parameters += (count * model.attention_parameters() + dense * model.dense_parameters()) / plan.tp;
  parameters += (count - dense) * (model.routing_parameters() / plan.tp +
                                   model.expert_parameters() * std::max(1.0, static_cast<double>(model.experts.count) / plan.ep));
  const Bytes3 held = state(parameters, plan.zero, shards);
  UniformMemory out;
  out.weights = held.weights;
  out.gradients = held.gradients;
  out.optimizer = held.optimizer;
  const bool first = stage == 0;
  const bool last = stage + 1 == plan.pp;
  const int tables = (first ? 1 : 0) + (last && !(first && model.tied) ? 1 : 0);
  const Bytes3 ends = state(tables * model.embedding_parameters() / plan.tp, plan.zero, shards);
  out.embedding = ends.weights + ends.gradients + ends.optimizer;
  out.activations = (dense * kept.plain + (count - dense) * kept.routed) * in_flight(plan, stage);
  const double tokens = static_cast<double>(plan.micro_batch) * static_cast<double>(model.seq) / plan.cp;
  if (last) out.logits = 6 * tokens * static_cast<double>(model.vocab) / plan.tp;
  const double boundary = 2 * tokens * static_cast<double>(model.hidden) / (plan.sequence_parallel ? plan.tp : 1);
  out.buffers = (plan.pp > 1 ? 4 : 0) * boundary + (plan.tp > 1 ? 2 * tokens * static_cast<double>(model.hidden) : 0);
  return out;
}

}  // namespace tessera::cost
