#include <algorithm>
#include <cmath>
#include <numeric>

#include "interop/galvatron/space.hpp"

namespace tessera::interop::galvatron {
namespace {

void check(const Inputs& inputs, const Plan& plan) {
  const Settings& settings = inputs.settings;
  const int pp = static_cast<int>(plan.division.size());
  if (plan.global_batch < 1 || plan.chunks < 1 || plan.global_batch / plan.chunks < 1)
    throw impossible(settings, text(plan.chunks, " micro-batches of a batch of ", plan.global_batch), "chunks <= global_bsz");
  if (pp < 1 || std::accumulate(plan.division.begin(), plan.division.end(), 0) != static_cast<int>(plan.layers.size()) ||
      static_cast<int>(plan.layers.size()) != settings.layers)
    throw impossible(settings, text(plan.layers.size(), " layers in ", pp, " stages"),
                     text("the model's ", settings.layers, " layers, divided by pp_division"));
  if (plan.chunks < pp) throw impossible(settings, text(plan.chunks, " micro-batches for ", pp, " stages"), "chunks >= pp_deg");
  const auto check_strategy = [&](const Strategy& strategy, const std::string& whose, bool known) {
    if (strategy.pp != pp || strategy.pp * strategy.tp * strategy.sp * strategy.cp * strategy.dp != settings.devices())
      throw impossible(settings, text(whose, " on ", strategy.pp * strategy.tp * strategy.sp * strategy.cp * strategy.dp, " devices"),
                       text(settings.devices(), " devices"));
    if (plan.global_batch / plan.chunks < strategy.dp)
      throw impossible(settings, text(whose, " with dp", strategy.dp, " has less than a sample per rank"), "fewer chunks or a smaller dp");
    if (!known) throw impossible(settings, text("the profile lacks ", whose, ": ", to_text(strategy)), "degrees that were profiled");
  };
  for (std::size_t i = 0; i < plan.layers.size(); ++i) check_strategy(plan.layers[i], text("layer ", i), has_layer(inputs, plan.layers[i]));
  check_strategy(plan.embedding, "the embedding", has_embedding(inputs, plan.embedding));
}

}  // namespace

Error impossible(const Settings& settings, const std::string& message, const std::string& expected) {
  return Error(ErrorCode::invalid_config, "the plan cannot be priced: " + message, {settings.file.string(), 0, 0, -1, {}}, expected);
}

PlanCost sum_up(const Settings& settings, const Plan& plan, const LayerCosts& layer, const std::vector<double>& other_time,
                const std::vector<double>& other_memory, int buffer, int chunks) {
  const bool others_first = settings.release == Release::v2_4_0;
  std::vector<Times> stages;
  PlanCost out;
  std::size_t next = 0;
  for (std::size_t stage = 0; stage < plan.division.size(); ++stage) {
    Times time{others_first ? other_time[stage] : 0, 0};
    std::int64_t memory = buffer + static_cast<std::int64_t>(std::ceil(other_memory[stage]));
    for (int i = 0; i < plan.division[stage]; ++i, ++next) {
      const Times one = layer.time(plan.layers[next]);
      time.compute += one.compute;
      time.synchronised += one.synchronised;
      memory += static_cast<std::int64_t>(std::ceil(layer.memory(plan.layers[next], static_cast<int>(stage))));
    }
    if (!others_first) time.compute += other_time[stage];
    stages.push_back(time);
    out.memory_mb.push_back(memory + reserved_memory(settings));
  }
  out.step = Seconds(pipeline_time(stages, chunks));
  out.fits = std::ranges::all_of(out.memory_mb, [&](std::int64_t mb) { return mb <= settings.memory_gb * 1024; });
  return out;
}

PlanCost cost_of(const Inputs& inputs, const Plan& plan) {
  if (inputs.settings.release == Release::v2_4_0) return packaged::cost_of(inputs, plan);
  check(inputs, plan);
  const int pp = static_cast<int>(plan.division.size());
  // The buffer of the widest split; Ulysses alone needs none.
  int degree = plan.embedding.split();
  bool tensor_parallel = plan.embedding.tp > 1;
  for (const Strategy& layer : plan.layers) {
    degree = std::max(degree, layer.split());
    tensor_parallel = tensor_parallel || layer.tp > 1;
  }
  const int buffer = tensor_parallel ? buffer_memory(inputs.settings, pp, degree, plan.global_batch, plan.chunks) : 0;
  return sum_up(inputs.settings, plan, layer_costs(inputs, plan.global_batch, plan.chunks),
                embedding_time(inputs, plan.embedding, plan.global_batch, plan.chunks),
                embedding_memory(inputs, plan.embedding, plan.global_batch, plan.chunks), buffer, plan.chunks);
}

Seconds relayout_time(const Inputs& inputs, const Plan& plan) {
  double milliseconds = 0;
  std::size_t layer = 0;
  for (int count : plan.division)
    for (int i = 0; i < count; ++i, ++layer) {
      if (i == 0 || plan.layers[layer].split() == plan.layers[layer - 1].split()) continue;
      const int split = std::max(plan.layers[layer].split(), plan.layers[layer - 1].split());
      const double groups = inputs.settings.devices() / plan.division.size() / static_cast<double>(split);
      const double mb = hidden_state_mb(inputs.settings, plan.global_batch / static_cast<double>(plan.chunks) / groups);
      milliseconds += 2 * plan.chunks * mb * (split - 1) / split * inputs.profile.adjacent.at(split);
    }
  return Seconds(milliseconds * 1e-3);
}

std::string to_text(const Strategy& strategy) {
  std::string out;
  const auto add = [&](const std::string& word) { out += (out.empty() ? "" : " ") + word; };
  if (strategy.tp > 1) add(text("tp", strategy.tp));
  if (strategy.sp > 1) add(text("ulysses", strategy.sp));
  if (strategy.cp > 1) add(text("cp", strategy.cp));
  if (strategy.dp > 1 || out.empty()) add(text("dp", strategy.dp));
  if (strategy.sharding == Sharding::zero2) add("zero2");
  if (strategy.sharding == Sharding::zero3) add("zero3");
  if (strategy.checkpoint) add("ckpt");
  if (strategy.apart) add("apart");
  return out;
}

}  // namespace tessera::interop::galvatron
