#include "plan/loads.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "plan/prices.hpp"
#include "plan/uniform_parts.hpp"

namespace tessera::plan {
namespace {

using profile::Collective;

// Of a process with its libraries and kernels loaded, and the allocator's fragments.
constexpr double kProcessBytes = 900.0 * (1 << 20);
// An optimizer step on the host: the device's way to it (PCIe 4 x16) carries 32-bit gradients out and 16-bit weights back, and a
// core group's share of the host's memory reads and writes 28 bytes for each parameter.
constexpr double kHostLink = 20e9;
constexpr double kHostMemory = 25e9;
constexpr double kHostTraffic = 28;

profile::Format format_of(model::Precision precision) {
  return precision == model::Precision::f8 ? profile::Format::fp8 : profile::Format::bf16;
}

// As the software stack of the calibration runs it.
model::BlockSpec as_run(model::BlockSpec block, const profile::Calibration& calibration) {
  if (block.dims.contains("heads")) block.dims["attention_fused"] = calibration.attention == profile::AttentionKernel::fused ? 1 : 0;
  block.dims["autograd"] = 1;
  if (calibration.dropout)
    block.dims["dropout"] = 1;
  else
    block.dims.erase("dropout");
  return block;
}

Again again_of(model::Recompute recompute) {
  return recompute == model::Recompute::full ? Again::layer : recompute == model::Recompute::selective ? Again::attention : Again::nothing;
}

// Weights in 16 bits, gradients, master weights and two moments in 32: bytes of a parameter.
constexpr double kWeight = 2;
constexpr double kGradient = 4;
constexpr double kState = 12;

struct Parameters {
  double plain = 0;    // that a rank holds, without sharding
  double experts = 0;
  double tied = 0;     // of these, plain ones that another block owns
};

Parameters parameters_of(const model::BlockSpec& block, const Strategy& strategy) {
  Parameters out;
  for (const model::ParameterSpec& parameter : block.parameters) {
    double count = static_cast<double>(parameter.count());
    if (parameter.split_dim >= 0) count /= strategy.tp;
    if (!parameter.tied_to.empty())
      out.tied += count;
    else if (parameter.expert_dim >= 0)
      out.experts += count / strategy.ep;
    else
      out.plain += count;
  }
  return out;
}

}  // namespace

struct Loads::Pass {
  LayerTime time;
  double saved = 0;
  double saved_whole = 0;  // without recomputation
};

struct Loads::Group {
  Group(const cluster::ResourceGroup& group, const profile::Calibration& calibration, const model::ModelSpec& model, profile::Format format)
      : kernels(group.device, calibration, format), exchanges(group, calibration) {
    for (const model::Repeat& repeat : model.repeats) blocks.push_back(as_run(repeat.block, calibration));
  }
  profile::Kernels kernels;
  profile::Exchanges exchanges;
  std::vector<model::BlockSpec> blocks;  // by repeat
};

bool Loads::supports(const cluster::ClusterSpec& cluster, model::Precision precision) {
  return precision != model::Precision::f32 && std::none_of(cluster.groups.begin(), cluster.groups.end(), [](const auto& group) { return group.device.is_cpu(); });
}

Loads::Loads(const model::ModelSpec& model, const cluster::ClusterSpec& cluster, model::Precision precision)
    : model_(model), cluster_(cluster), precision_(precision) {
  for (std::size_t r = 0; r < model.repeats.size(); ++r) repeat_of_.insert(repeat_of_.end(), static_cast<std::size_t>(model.repeats[r].count), static_cast<int>(r));
  for (const cluster::ResourceGroup& group : cluster.groups)
    groups_.push_back(group.device.has(precision)
                          ? std::make_unique<Group>(group, profile::calibration_for(group.device.name), model, format_of(precision))
                          : nullptr);
}

Loads::~Loads() = default;

const BlockLoad& Loads::block(int repeat, int group, const Strategy& s, std::int64_t samples) {
  const int flags = (s.sequence_parallel ? 1 : 0) | (s.context == model::ContextKind::ulysses ? 2 : 0) | (s.offload_optimizer ? 4 : 0);
  const Key key{repeat, group, s.dp, s.tp, s.cp, s.ep, s.zero, static_cast<int>(s.recompute), flags, samples};
  const auto [found, fresh] = blocks_.try_emplace(key);
  if (fresh) found->second = priced(repeat, group, s, samples);
  return found->second;
}

// What does not depend on how the state is sharded is computed once.
const Loads::Pass& Loads::pass(int repeat, int g, const Strategy& s, std::int64_t micro_batch) {
  const PassKey key{repeat, g, s.tp, s.cp, s.ep, static_cast<int>(s.recompute), (s.sequence_parallel ? 1 : 0) | (s.context == model::ContextKind::ulysses ? 2 : 0), micro_batch};
  const auto [found, fresh] = passes_.try_emplace(key);
  if (!fresh) return *found->second;
  const Group& group = *groups_[static_cast<std::size_t>(g)];
  const model::BlockSpec& spec = group.blocks[static_cast<std::size_t>(repeat)];
  UniformPlan cut;
  cut.tp = s.tp;
  cut.cp = s.cp;
  cut.ep = s.ep;
  cut.context = s.context;
  cut.micro_batch = micro_batch;
  cut.format = format_of(precision_);
  cut.again = again_of(s.recompute);
  cut.sequence_parallel = s.sequence_parallel;
  model::BlockShard shard = shard_of(cut);
  Pass pass{block_time(cut, group.kernels, group.exchanges, spec), static_cast<double>(model::cost_of(spec, shard).saved.value), 0};
  pass.saved_whole = pass.saved;
  if (s.recompute == model::Recompute::full) {
    shard.recompute = model::Recompute::none;
    pass.saved_whole = static_cast<double>(model::cost_of(spec, shard).saved.value);
  }
  found->second = std::make_unique<Pass>(pass);
  return *found->second;
}

BlockLoad Loads::priced(int repeat, int g, const Strategy& s, std::int64_t samples) {
  if (!groups_[static_cast<std::size_t>(g)])
    throw Error(ErrorCode::not_found, text("device ", cluster_.groups[static_cast<std::size_t>(g)].device.name, " does not compute in ", model::name_of(precision_)), {},
                "a group whose device does");
  const Group& group = *groups_[static_cast<std::size_t>(g)];
  const profile::Calibration& calibration = group.kernels.calibration();
  const model::BlockSpec& spec = group.blocks[static_cast<std::size_t>(repeat)];
  const std::int64_t micro_batch = samples / s.dp;
  const Pass& once = pass(repeat, g, s, micro_batch);
  const LayerTime& time = once.time;

  BlockLoad out;
  out.products = time.forward.products + time.backward.products;
  out.attention = time.forward.attention + time.backward.attention;
  out.elementwise = time.forward.elementwise + time.backward.elementwise;
  out.again = time.again.total();
  out.tensor_exchange = time.forward.tensor_exchange + time.backward.tensor_exchange;
  out.context_exchange = time.forward.context_exchange + time.backward.context_exchange;
  out.expert_exchange = time.forward.expert_exchange + time.backward.expert_exchange;
  const bool layer = spec.dims.contains("heads") && spec.dims.contains("ffn");
  const double layer_host = layer ? calibration.layer_host : 0;
  out.host = time.forward.host + time.backward.host + layer_host;
  out.forward = time.forward.total() + layer_host;
  out.backward_weight = time.weight_half;
  out.backward_input = time.backward.total() - time.weight_half + time.again.total();

  const Parameters held = parameters_of(spec, s);
  const int team = s.dp * s.cp;
  const double shards = team;
  const double expert_shards = std::max(1.0, shards / s.ep);
  const double bytes = kWeight * held.plain;
  const double plain_share = s.zero >= 1 ? shards : 1;
  const double expert_share = s.zero >= 1 ? expert_shards : 1;
  if (team > 1) {
    const profile::Team peers{team, s.tp};
    double reduce = 0;
    double spread = 0;
    if (s.zero >= 2) {
      // Weights are gathered before a pass and gradients scattered after it, beside the neighbours' computing, which slows down.
      const double gather = group.exchanges.collective(Collective::all_gather, bytes, peers);
      const double scatter = group.exchanges.collective(Collective::reduce_scatter, bytes, peers);
      const auto longer = [&](double computing, double exchange) {
        return std::max(computing + calibration.overlap_slowdown * std::min(computing, exchange), exchange) - computing;
      };
      const double forward = longer(out.forward, gather);
      const double backward = longer(out.backward(), scatter + (s.zero == 3 ? gather : 0));
      out.forward += forward;
      out.backward_input += backward;
      out.parameter_exchange = forward + backward;
    } else if (s.zero == 1) {
      reduce = group.exchanges.collective(Collective::reduce_scatter, bytes, peers);
      spread = group.exchanges.collective(Collective::all_gather, bytes, peers);
    } else {
      reduce = group.exchanges.collective(Collective::all_reduce, bytes, peers);
    }
    if (held.experts > 0) {
      const profile::Team same{std::max(1, team / s.ep), s.tp * s.ep};
      reduce += group.exchanges.collective(Collective::reduce_scatter, kWeight * held.experts, same);
      spread += group.exchanges.collective(Collective::all_gather, kWeight * held.experts, same);
    }
    out.exchange = waited(reduce, out.backward(), calibration) + waited(spread, out.forward, calibration);
  }
  if (held.tied > 0) out.tied_exchange = group.exchanges.collective(Collective::all_reduce, kWeight * held.tied, {2, cluster_.groups[static_cast<std::size_t>(g)].domain()});

  const double stepped = held.plain / plain_share + held.experts / expert_share;
  const double memory_rate = cluster_.groups[static_cast<std::size_t>(g)].device.memory_bandwidth.value * calibration.memory;
  out.optimizer = s.offload_optimizer ? stepped * ((kGradient + kWeight) / kHostLink + kHostTraffic / kHostMemory) : stepped * calibration.optimizer_bytes / memory_rate;

  const auto share = [&](int from, double each) {
    return each * (held.plain / (s.zero >= from ? shards : 1) + held.experts / (s.zero >= from ? expert_shards : 1));
  };
  out.weights = share(3, kWeight);
  out.gradients = share(2, kGradient);
  out.optimizer_state = s.offload_optimizer ? 0 : share(1, kState);
  out.tied_bytes = held.tied * (kWeight / (s.zero >= 3 ? shards : 1) + kGradient / (s.zero >= 2 ? shards : 1) + kState / plain_share);

  const double tokens = static_cast<double>(micro_batch) * (spec.dims.contains("seq") ? spec.real("seq") : 1) / s.cp;
  const bool head = spec.kind == "lm_head" || spec.kind == "language_head";
  if (head) {
    // Logits in 16 and their gradient in 32 bits while the head runs.
    out.workspace = 6 * tokens * spec.real("vocab") / s.tp;
  } else {
    out.saved = once.saved;
    if (s.tp > 1 && spec.dims.contains("hidden")) out.workspace = 2 * tokens * spec.real("hidden");
  }
  // The whole weights of this block and of the next one, which is on its way.
  if (s.zero == 3) out.workspace += 2 * kWeight * (held.plain + held.experts);
  out.workspace += once.saved_whole - once.saved;
  return out;
}

double Loads::input_bytes(int repeat, std::int64_t samples) const {
  double elements = 0;
  for (const model::TensorSpec& tensor : model_.repeats[static_cast<std::size_t>(repeat)].block.inputs) {
    double product = 1;
    for (const std::int64_t extent : tensor.shape) product *= static_cast<double>(extent);
    elements += product;
  }
  return 2 * elements * static_cast<double>(samples);
}

double Loads::resplit(int repeat, int g, const Strategy& before, const Strategy& strategy, std::int64_t samples) {
  if (before.tp == strategy.tp && before.cp == strategy.cp && before.dp == strategy.dp) return 0;
  const Group& group = *groups_[static_cast<std::size_t>(g)];
  // Each rank gathers the larger of its two shares from those that the coarser of the cuts puts together.
  const int parts_before = before.dp * before.cp;
  const int parts_after = strategy.dp * strategy.cp;
  const int together = std::max(before.tp * before.cp, strategy.tp * strategy.cp);
  const double bytes = input_bytes(repeat, samples) / std::min(parts_before, parts_after);
  return group.exchanges.collective(Collective::all_gather, bytes, {together, 1});
}

double Loads::message(double bytes, int from, int width_from, int to, int width_to) {
  const Group& sender = *groups_[static_cast<std::size_t>(from)];
  const profile::Calibration& calibration = sender.kernels.calibration();
  if (from == to && width_from == width_to) return calibration.pipeline_exposed * sender.exchanges.message(bytes / width_from, width_from);
  // Through the adapters of the smaller side's nodes.
  const auto rate = [&](int index, int width) {
    const cluster::ResourceGroup& group = cluster_.groups[static_cast<std::size_t>(index)];
    const double nodes = std::max(1.0, static_cast<double>(width) / group.devices_per_node);
    const cluster::Link& link = from == to ? group.network : cluster_.between;
    return nodes * link.bandwidth.value * (from == to ? group.adapters : 1) * groups_[static_cast<std::size_t>(index)]->kernels.calibration().network;
  };
  return calibration.pipeline_exposed * (bytes / std::min(rate(from, width_from), rate(to, width_to)) + 2 * calibration.latency);
}

double Loads::micro_batch_host(int group) const { return groups_[static_cast<std::size_t>(group)]->kernels.calibration().micro_batch_host; }
double Loads::step_host(int group) const { return groups_[static_cast<std::size_t>(group)]->kernels.calibration().step_host; }
double Loads::weight_pass_bubble(int group) const { return groups_[static_cast<std::size_t>(group)]->kernels.calibration().weight_pass_bubble; }
bool Loads::attention_is_fused(int group) const {
  return groups_[static_cast<std::size_t>(group)]->kernels.calibration().attention == profile::AttentionKernel::fused;
}
double Loads::process_bytes(int) const { return kProcessBytes; }
double Loads::memory_limit(int group) const { return static_cast<double>(plan::memory_limit(cluster_.groups[static_cast<std::size_t>(group)].device).value); }

}  // namespace tessera::plan
