#include "cost/uniform.hpp"

#include <algorithm>
#include <cmath>

#include "cost/uniform_parts.hpp"

namespace tessera::cost {
namespace {

using profile::Collective;
using profile::Team;

// Parameters that a rank of the fullest stage holds and exchanges.
struct RankParameters {
  double plain = 0;    // on all data-parallel ranks alike
  double experts = 0;  // on those with the same experts
};

RankParameters rank_parameters(const Pricing& p, const std::vector<int>& layers) {
  const Transformer& model = p.model;
  const int most = *std::max_element(layers.begin(), layers.end());
  RankParameters out;
  if (model.experts.count > 0) {
    out.plain = most * (model.attention_parameters() + model.routing_parameters()) / p.plan.tp;
    out.experts = most * model.expert_parameters() * std::max(1.0, static_cast<double>(model.experts.count) / p.plan.ep);
  } else {
    out.plain = (most * (model.attention_parameters() + model.dense_parameters()) + (p.plan.pp == 1 ? model.embedding_parameters() : 0)) /
                p.plan.tp;
  }
  // Adapters have about a hundredth of the weights that they adapt.
  constexpr double kAdapters = 0.01;
  return p.plan.frozen ? RankParameters{out.plain * kAdapters, out.experts * kAdapters} : out;
}

int shards_of(const UniformPlan& plan) { return plan.zero == 0 ? 1 : plan.shards > 0 ? plan.shards : plan.dp * plan.cp; }

// Gradients summed and, with ZeRO, new parameters spread, after the backward passes.
double gradient_exchange(const Pricing& p, const RankParameters& parameters, const StageTime& slowest) {
  const UniformPlan& plan = p.plan;
  const profile::Calibration& calibration = p.kernels.calibration();
  const int team = plan.dp * plan.cp;
  const double bytes = plan.gradient_bytes * parameters.plain;
  double reduce = 0;
  double spread = 0;
  double waits = 0;
  if (plan.zero == 0) {
    reduce = p.exchanges.collective(Collective::all_reduce, bytes, {team, plan.tp});
  } else {
    const int shards = std::min(shards_of(plan), team);
    reduce = p.exchanges.collective(Collective::reduce_scatter, bytes, {shards, plan.tp});
    spread = p.exchanges.collective(Collective::all_gather, 2 * parameters.plain, {shards, plan.tp});
    if (shards < team) reduce += p.exchanges.collective(Collective::all_reduce, bytes / shards, {team / shards, plan.tp * shards});
    waits = calibration.member_wait * (shards - 1 + team / shards - 1);
  }
  if (parameters.experts > 0) {
    const Team same{std::max(1, team * plan.tp / plan.ep), plan.ep};
    reduce += p.exchanges.collective(Collective::reduce_scatter, plan.gradient_bytes * parameters.experts, same);
    spread += p.exchanges.collective(Collective::all_gather, 2 * parameters.experts, same);
  }
  return waited(reduce, slowest.backward_total(), calibration) + waited(spread, slowest.forward_total(), calibration) + waits;
}

// With sharded parameters (ZeRO-2 and -3) each layer's weights are gathered before it computes and its gradients scattered
// after: beside the computing of its neighbours, which slows down.
double layer_exchanges(const Pricing& p, const LayerTime& layer) {
  const UniformPlan& plan = p.plan;
  const Transformer& model = p.model;
  const profile::Calibration& calibration = p.kernels.calibration();
  const Team team{plan.dp * plan.cp, plan.tp};
  const double weights = (model.attention_parameters() + model.dense_parameters()) / plan.tp;
  const double gather = p.exchanges.collective(Collective::all_gather, 2 * weights, team);
  const double scatter = p.exchanges.collective(Collective::reduce_scatter, plan.gradient_bytes * weights, team);
  const auto longer = [&](double computing, double exchange) {
    return std::max(computing + calibration.overlap_slowdown * std::min(computing, exchange), exchange) - computing;
  };
  const double backward = layer.backward.total() + layer.again.total();
  const double each = longer(layer.forward.total(), gather) + longer(backward, scatter + (plan.zero == 3 ? gather : 0));
  return plan.micro_batches() * (model.layers / static_cast<double>(plan.pp) * each + gather);
}

struct Pipeline {
  double bubble = 0;
  double messages = 0;
};

Pipeline pipeline(const Pricing& p, const std::vector<StageTime>& stages, double slowest) {
  const UniformPlan& plan = p.plan;
  if (plan.pp == 1) return {};
  const profile::Calibration& calibration = p.kernels.calibration();
  const double depth = plan.pp;
  const double count = plan.micro_batches();
  double forward = 0;
  double total = 0;
  for (const StageTime& stage : stages) {
    forward += stage.forward_total();
    total += stage.total();
  }
  const double bytes =
      2 * p.tokens() * static_cast<double>(p.model.hidden) / (plan.tp > 1 && (plan.sequence_parallel || plan.cut_messages) ? plan.tp : 1);
  const double message = p.exchanges.stage_message(bytes, plan.tp * plan.cp * plan.dp) * calibration.pipeline_exposed;
  const double mean_forward = forward / depth;
  switch (plan.schedule) {
    case plan::Schedule::zb_h2: return {calibration.weight_pass_bubble * (depth - 1) * mean_forward, 2 * message * count};
    // Two stages of half the depth: the warm-up is half as long, the messages twice as many.
    case plan::Schedule::zb_v:
    case plan::Schedule::dualpipe_v: return {calibration.weight_pass_bubble * (depth - 1) * mean_forward / 2, 4 * message * count};
    // Backward for the input only, as long as forward, is on the way: (p - 1)(F + B - W).
    case plan::Schedule::zb_h1: return {forward - stages.back().forward_total(), 2 * message * (count + depth - 1)};
    case plan::Schedule::interleaved: return {(depth - 1) / depth * total / plan.chunks, 2 * message * (count * plan.chunks + depth - 1)};
    case plan::Schedule::one_f_one_b:
    case plan::Schedule::gpipe: break;
  }
  return {total - slowest, 2 * message * (count + depth - 1)};
}

void refuse_nothing(const UniformPlan& plan, const Transformer& model) {
  const std::pair<const char*, std::int64_t> sizes[] = {{"layers", model.layers},
                                                        {"hidden", model.hidden},
                                                        {"heads", model.heads},
                                                        {"kv_heads", model.kv_heads},
                                                        {"head_dim", model.head_dim},
                                                        {"ffn", model.ffn},
                                                        {"vocab", model.vocab},
                                                        {"seq", model.seq},
                                                        {"tp", plan.tp},
                                                        {"cp", plan.cp},
                                                        {"dp", plan.dp},
                                                        {"pp", plan.pp},
                                                        {"ep", plan.ep},
                                                        {"chunks", plan.chunks},
                                                        {"micro_batch", plan.micro_batch},
                                                        {"global_batch", plan.global_batch}};
  for (const auto& [name, size] : sizes)
    if (size < 1) throw Error(ErrorCode::invalid_config, text(name, ": found ", size), {}, text(name, " of at least 1"));
}

}  // namespace

std::vector<std::pair<std::string, double>> UniformPrice::terms() const {
  PassTime passes = forward;
  passes += backward;
  return {{"matrix products", passes.products},
          {"attention", passes.attention},
          {"elementwise", passes.elementwise},
          {"computed again", again.total()},
          {"tensor-parallel exchange", passes.tensor_exchange},
          {"context-parallel exchange", passes.context_exchange},
          {"expert exchange", passes.expert_exchange},
          {"host, micro-batches", passes.host},
          {"bubble", bubble},
          {"messages between stages", messages},
          {"gradient exchange", gradients},
          {"optimizer", optimizer},
          {"host, step", host}};
}

std::vector<int> stage_layers(const UniformPlan& plan, const Transformer& model) {
  if (!plan.stage_layers.empty()) return plan.stage_layers;
  if (plan.pp > model.layers)
    throw Error(ErrorCode::invalid_config, text(plan.pp, " stages for ", model.layers, " layers leave a stage without any"), {},
                text("pp of at most ", model.layers));
  std::vector<int> out(static_cast<std::size_t>(plan.pp), model.layers / plan.pp);
  for (int i = 0; i < model.layers % plan.pp; ++i) ++out[static_cast<std::size_t>(i)];
  return out;
}

UniformPrice price(const UniformPlan& plan, const Transformer& model, const cluster::ResourceGroup& group,
                   const profile::Calibration& calibration) {
  refuse_nothing(plan, model);
  const int devices = group.nodes * group.devices_per_node;
  if (plan.ranks() > devices)
    throw Error(ErrorCode::invalid_config,
                text("tp ", plan.tp, " x cp ", plan.cp, " x dp ", plan.dp, " x pp ", plan.pp, " are ", plan.ranks(), " ranks; ", group.name,
                     " has ", devices, " devices"),
                {}, text("at most ", devices, " ranks"));
  const Pricing pricing(plan, model, group, calibration);
  return price_of(pricing, group, block_times(pricing), stage_layers(plan, model));
}

UniformPrice price_of(const Pricing& pricing, const cluster::ResourceGroup& group, const BlockTimes& blocks,
                      const std::vector<int>& layers) {
  const UniformPlan& plan = pricing.plan;
  const Transformer& model = pricing.model;
  const profile::Calibration& calibration = pricing.kernels.calibration();
  const std::vector<StageTime> stages = stage_times(pricing, blocks, layers);
  const StageTime& slowest =
      *std::max_element(stages.begin(), stages.end(), [](const StageTime& a, const StageTime& b) { return a.total() < b.total(); });
  const double count = plan.micro_batches();
  UniformPrice out;
  out.forward = slowest.forward * count;
  out.backward = slowest.backward * count;
  out.again = slowest.again * count;
  const Pipeline waits = pipeline(pricing, stages, slowest.total());
  out.bubble = waits.bubble;
  out.messages = waits.messages;
  const RankParameters parameters = rank_parameters(pricing, layers);
  out.gradients = plan.zero >= 2 ? layer_exchanges(pricing, blocks.plain) : gradient_exchange(pricing, parameters, slowest);
  if (plan.pp > 1 && model.tied) {
    const double bytes = plan.gradient_bytes * model.embedding_parameters() / plan.tp;
    out.gradients += pricing.exchanges.collective(Collective::all_reduce, bytes,
                                                  {2, group.nodes * group.devices_per_node <= group.domain() ? 1 : group.domain()});
  }
  const double stepped = (parameters.plain + parameters.experts) / shards_of(plan);
  out.optimizer = stepped * calibration.optimizer_bytes / (group.device.memory_bandwidth.value * calibration.memory);
  out.host = calibration.step_host;
  out.step =
      out.forward.total() + out.backward.total() + out.again.total() + out.bubble + out.messages + out.gradients + out.optimizer + out.host;
  return out;
}

UniformPrice price(const UniformPlan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster,
                   const profile::Calibration& calibration) {
  return price(plan, transformer_of(model), cluster.groups.front(), calibration);
}

}  // namespace tessera::cost
