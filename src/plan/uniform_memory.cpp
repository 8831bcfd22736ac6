#include <algorithm>

#include "plan/uniform.hpp"

namespace tessera::plan {
namespace {

// Bytes that one layer keeps of one micro-batch, by sample, token and hidden unit (Korthikanti et al. 2022, table 2), and for
// fused attention what is left of them: no scores, no masks.
double layer_activations(const UniformPlan& plan, const Transformer& model, const profile::Calibration& calibration) {
  const double hidden = static_cast<double>(model.hidden);
  const double tokens = static_cast<double>(plan.micro_batch) * static_cast<double>(model.seq) / plan.cp;
  const double tp = plan.tp;
  const double outside = plan.sequence_parallel ? tp : 1;  // what tensor parallelism leaves whole
  const double unit = tokens * hidden;
  if (plan.again == Again::layer) return 2 * unit / (plan.sequence_parallel ? tp : 1);
  const double mask = calibration.dropout ? 1 : 0;
  // Inputs of two norms and of two pairs of products, and two masks.
  const double whole = unit * (8 + 2 * mask) / outside;
  const double queries = static_cast<double>(model.heads * model.head_dim) / hidden;
  const double keys = static_cast<double>(model.kv_heads * model.head_dim) / hidden;
  const double width = static_cast<double>(model.ffn) / hidden;
  // Queries, keys, values and the attention's result; the feed-forward part before and after its activation.
  double cut = unit * (2 * (2 * queries + 2 * keys) + 2 * width * (model.gated ? 3 : 2)) / tp;
  if (calibration.attention == profile::AttentionKernel::unfused && plan.again == Again::nothing) {
    const double scores = static_cast<double>(model.heads) * static_cast<double>(model.seq) * tokens;
    cut += scores * (4 + mask) / tp;
  }
  if (plan.again == Again::half) cut /= 2;
  return whole + cut;
}

// Micro-batches' worth of a stage's layers that are held at once.
double in_flight(const UniformPlan& plan, int stage) {
  const double count = plan.micro_batches();
  const double depth = plan.pp;
  switch (plan.schedule) {
    case Schedule::gpipe: return count;
    // The first stage holds 1 + (p - 1) / (p v) of a full pipeline (Narayanan et al. 2021, section 2.2).
    case Schedule::interleaved: return std::min(count, depth - stage + (depth - 1) / plan.chunks);
    case Schedule::zb_h2: return std::min(count, 2 * depth - 1 - 2.0 * stage);
    case Schedule::zb_v:
    case Schedule::dualpipe_v: return std::min(count, depth);
    case Schedule::zb_h1:
    case Schedule::one_f_one_b: break;
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
  return {{"weights", weights},         {"gradients", gradients}, {"optimizer state", optimizer}, {"embedding and head", embedding},
          {"activations", activations}, {"logits", logits},       {"buffers", buffers}};
}

UniformMemory memory_of(const UniformPlan& plan, const Transformer& model, const profile::Calibration& calibration, int stage) {
  const std::vector<int> layers = stage_layers(plan, model);
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
  out.activations = layer_activations(plan, model, calibration) * count * in_flight(plan, stage);
  const double tokens = static_cast<double>(plan.micro_batch) * static_cast<double>(model.seq) / plan.cp;
  if (last) out.logits = 6 * tokens * static_cast<double>(model.vocab) / plan.tp;
  const double boundary = 2 * tokens * static_cast<double>(model.hidden) / (plan.sequence_parallel ? plan.tp : 1);
  out.buffers = (plan.pp > 1 ? 4 : 0) * boundary + (plan.tp > 1 ? 2 * tokens * static_cast<double>(model.hidden) : 0);
  return out;
}

}  // namespace tessera::plan
