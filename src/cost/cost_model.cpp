#include "cost/cost_model.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "base/error.hpp"
#include "cost/block_time.hpp"
#include "cost/cost.hpp"
#include "model/tensor_flow.hpp"
#include "program/state_exchanges.hpp"

namespace tessera::cost {
namespace {

using profile::Collective;

// As the software stack of the calibration runs it. What the model says (`attention`, `dropout`, `keeps`) holds; what it leaves open the
// stack decides. Throws where the stack cannot do what the model says.
model::BlockSpec as_run(model::BlockSpec block, const profile::Calibration& calibration, const std::string& group) {
  const bool fused = calibration.attention == profile::AttentionKernel::fused;
  if (block.dims.contains("heads")) {
    const auto said = block.dims.try_emplace("attention_fused", fused ? 1 : 0).first;
    if (said->second != 0 && !fused)
      throw Error(ErrorCode::invalid_config,
                  text("the model says attention: fused, and the stack '", calibration.stack, "' that group ", group,
                       " is priced by has no fused kernel"),
                  {}, "attention: unfused, or no word of it", "or another `stack:` for the group in the cluster file");
  }
  block.dims.try_emplace("autograd", 1);
  return block;
}

// Tables of which a micro-batch touches few rows: 32 bits a value, and one moment for each row (row-wise AdaGrad). Rows are stepped as soon
// as their gradients are there, so that no gradient of a whole table exists (Mudigere et al. 2022, section 4.1).
constexpr double kTableValue = 4;
constexpr double kTableMoment = 4;
// Adapters have about a hundredth of the weights that they adapt.
constexpr double kAdapters = 0.01;

// A group of which each stage has only so many devices of each domain: their share of the links that all of them use.
cluster::ResourceGroup thinned(cluster::ResourceGroup group, int per_domain) {
  const double share = static_cast<double>(per_domain) / group.domain();
  group.network.bandwidth = group.network.bandwidth * (share * group.nodes_per_domain);
  if (group.inside.shared) group.inside.bandwidth = group.inside.bandwidth * (static_cast<double>(per_domain) / group.devices_per_node);
  group.nodes = group.nodes / group.nodes_per_domain;
  group.nodes_per_rack = group.nodes_per_rack / group.nodes_per_domain;
  group.nodes_per_domain = 1;
  group.devices_per_node = per_domain;
  return group;
}

bool of_one_group(const std::vector<StageDevices::Part>& parts, int group) {
  return std::all_of(parts.begin(), parts.end(), [&](const StageDevices::Part& part) { return part.group == group; });
}

// The link among so many ranks that stand beside each other.
const cluster::Link& link_among(const StageDevices::Part& part, const cluster::ResourceGroup& group, int ranks) {
  const int on_node = part.neighbours > 0 ? part.neighbours : group.devices_per_node;
  return ranks <= on_node ? group.inside : group.network;
}

const profile::Profile& nothing_measured() {
  static const profile::Profile nothing;
  return nothing;
}

model::TrainSpec training_in(model::Precision precision) {
  model::TrainSpec out;
  out.precision = precision;
  return out;
}

}  // namespace

struct CostModel::Pass {
  LayerTime time;
  double saved = 0;
  double saved_whole = 0;  // without recomputation
};

// What is asked of a block for every one of its strategies.
struct CostModel::Block {
  explicit Block(model::BlockSpec of)
      : spec(std::move(of)),
        layer(spec.dims.contains("heads") && spec.dims.contains("ffn")),
        head(spec.kind == "lm_head" || spec.kind == "language_head"),
        seq(spec.dims.contains("seq") ? spec.real("seq") : 1),
        hidden(spec.dims.contains("hidden") ? spec.real("hidden") : 0),
        vocab(head ? spec.real("vocab") : 0) {}
  model::BlockSpec spec;
  bool layer;  // of a transformer
  bool head;
  double seq, hidden, vocab;
};

struct CostModel::Group {
  Group(const cluster::ResourceGroup& group, const profile::Calibration& calibration, const model::ModelSpec& model, profile::Format format,
        int dealt_over = 1)
      : kernels(group.device, calibration, format), exchanges(group, calibration, dealt_over) {
    for (const model::Repeat& repeat : model.repeats) blocks.emplace_back(as_run(repeat.block, calibration, group.name));
  }
  profile::Kernels kernels;
  profile::Exchanges exchanges;
  std::vector<Block> blocks;  // by repeat
};

CostModel::CostModel(const model::ModelSpec& model, const cluster::ClusterSpec& cluster, model::Precision precision, Stack stack)
    : CostModel(model, training_in(precision), cluster, nothing_measured(), std::move(stack)) {}

CostModel::CostModel(const model::ModelSpec& model, const model::TrainSpec& train, const cluster::ClusterSpec& cluster,
                     const profile::Profile& profile, Stack stack)
    : model_(model),
      cluster_(cluster),
      precision_(train.precision),
      optimizer_(train.optimizer),
      profile_(profile),
      stack_(std::move(stack)) {
  for (std::size_t r = 0; r < model.repeats.size(); ++r)
    repeat_of_.insert(repeat_of_.end(), static_cast<std::size_t>(model.repeats[r].count), static_cast<int>(r));
  elements_before_.resize(model.repeats.size());
  const std::vector<std::int64_t> elements = model::elements_before(model::tensor_flow(model));
  for (std::size_t b = 0; b < elements.size(); ++b) {
    double& most = elements_before_[repeat_of_[b]];
    most = std::max(most, static_cast<double>(elements[b]));
  }
  if (!stack_.format) stack_.format = precision_ == model::Precision::f8 ? profile::Format::fp8 : profile::Format::bf16;
  for (const cluster::ResourceGroup& group : cluster.groups)
    groups_.push_back(
        group.device.accelerates(precision_)
            ? std::make_unique<Group>(group, stack_.calibration ? *stack_.calibration : calibration_of(group), model, *stack_.format)
            : nullptr);
  const model::Repeat& most = *std::max_element(model.repeats.begin(), model.repeats.end(),
                                                [](const model::Repeat& a, const model::Repeat& b) { return a.count < b.count; });
  for (const model::Operator& step : model::cost_of(most.block, {}).forward_operators)
    layer_flops_ += step.flops.value / input_bytes(static_cast<int>(&most - model.repeats.data()), 1);
  for (int group = 0; group < static_cast<int>(cluster.groups.size()); ++group) {
    Stand& stand = stands_.emplace_back();
    stand.devices.parts.push_back({group});
    stand.priced_as.push_back(group);
  }
}

CostModel::~CostModel() = default;

int CostModel::add(StageDevices devices) {
  for (StageDevices::Part& part : devices.parts) {
    const cluster::ResourceGroup& group = cluster_.groups[part.group];
    if (!group.device.is_cpu()) part.threads = part.neighbours = 0;
    if (part.speed == group.speed_of(0)) part.speed = 0;
  }
  const bool plain = devices.parts.size() == 1 && devices.per_node == 0 && devices.dealt_over == 0;
  if (const StageDevices::Part& part = devices.parts.front(); plain && part.threads == 0 && part.neighbours == 0 && part.speed == 0)
    return part.group;
  const auto [found, fresh] = known_.try_emplace(devices, static_cast<int>(stands_.size()));
  if (!fresh) return found->second;
  Stand stand{devices, {}};
  for (const StageDevices::Part& part : devices.parts) {
    require(part.group);
    stand.priced_as.push_back(part.group);
  }
  if (devices.per_node > 0 || devices.dealt_over > 0) {
    const int index = devices.parts.front().group;
    const cluster::ResourceGroup& group = cluster_.groups[index];
    const profile::Calibration& calibration = group_of(index, 0).kernels.calibration();
    groups_.push_back(devices.per_node > 0 ? std::make_unique<Group>(thinned(group, devices.per_node), calibration, model_, *stack_.format)
                                           : std::make_unique<Group>(group, calibration, model_, *stack_.format, devices.dealt_over));
    stand.priced_as.front() = static_cast<int>(groups_.size()) - 1;
  }
  stands_.push_back(std::move(stand));
  return found->second;
}

void CostModel::require(int group) const {
  if (cluster_.groups[group].device.has(precision_)) return;
  throw Error(ErrorCode::not_found,
              text("device ", cluster_.groups[group].device.name, " does not compute in ", model::name_of(precision_)), {},
              "a group whose device does");
}

const CostModel::Group& CostModel::group_of(int devices, std::size_t part) const {
  const std::unique_ptr<Group>& group = groups_[stand(devices).priced_as[part]];
  if (!group)
    throw Error(ErrorCode::internal, text("no calibration says what exchanges of ", cluster_group(devices, part).device.name, " in ",
                                          model::name_of(precision_), " take beside computing"));
  return *group;
}

bool CostModel::divides(int devices, const plan::Strategy& s, std::int64_t samples) const {
  const std::vector<StageDevices::Part>& parts = stand(devices).devices.parts;
  if (const int domains = stand(devices).devices.dealt_over; domains > 0) {
    // As many ranks of a team on each of its domains.
    for (const int block : {s.tp, s.tp * s.cp, s.tp * s.ep})
      if (domains % block != 0 && block % domains != 0) return false;
  }
  if (parts.size() == 1) return samples % s.dp == 0;
  return std::all_of(parts.begin(), parts.end(), [&](const StageDevices::Part& part) {
    const int replicas = part.ranks / (s.cp * s.tp);
    return replicas * s.cp * s.tp == part.ranks && part.samples % replicas == 0 && replicas * s.cp % s.ep == 0;
  });
}

int CostModel::standing(int devices, int width) {
  const StageDevices& of = stand(devices).devices;
  const StageDevices::Part& first = of.parts.front();
  if (of.parts.size() > 1 || of.per_node > 0 || of.dealt_over > 0) return devices;
  const cluster::ResourceGroup& group = cluster_.groups[first.group];
  const int domain = group.domain();
  // Of a domain of many nodes, some are left out so that stages stand in it whole.
  if (group.nodes_per_domain > 1 || !calibrated(group.device, precision_) || width % domain == 0 || domain % width == 0 ||
      group.nodes * group.devices_per_node <= domain)
    return devices;
  StageDevices apart;
  apart.parts = {first};
  apart.per_node = std::gcd(width, domain);
  return add(std::move(apart));
}

const BlockLoad& CostModel::block(int repeat, int devices, const plan::Strategy& s, std::int64_t samples, int part) {
  devices = standing(devices, s.ranks());
  if (stand(devices).devices.parts.size() == 1) part = kAllParts;
  const auto [found, fresh] = blocks_.try_emplace({repeat, devices, s, samples, part});
  if (fresh) found->second = part == kAllParts ? priced(repeat, devices, s, samples) : priced_on(repeat, devices, part, s, samples);
  return found->second;
}

BlockLoad CostModel::priced(int repeat, int devices, const plan::Strategy& s, std::int64_t samples) {
  devices = standing(devices, s.ranks());
  BlockLoad out = priced_on(repeat, devices, 0, s, samples);
  for (std::size_t part = 1; part < stand(devices).devices.parts.size(); ++part) {
    const BlockLoad other = priced_on(repeat, devices, part, s, samples);
    // What the passes of the slower part are spent on.
    if (other.forward + other.backward() > out.forward + out.backward()) {
      out.spent = other.spent;
      for (double BlockLoad::*spent : {&BlockLoad::again, &BlockLoad::parameter_exchange, &BlockLoad::forward_exchange,
                                       &BlockLoad::backward_exchange, &BlockLoad::again_exchange})
        out.*spent = other.*spent;
    }
    for (double BlockLoad::*seconds : {&BlockLoad::forward, &BlockLoad::backward_input, &BlockLoad::backward_weight, &BlockLoad::exchange,
                                       &BlockLoad::optimizer, &BlockLoad::tied_exchange})
      out.*seconds = std::max(out.*seconds, other.*seconds);
    const double scale = memory_limit(devices) / memory_limit(devices, part);
    for (double BlockLoad::*bytes :
         {&BlockLoad::weights, &BlockLoad::gradients, &BlockLoad::optimizer_state, &BlockLoad::tied_bytes, &BlockLoad::tied_gradients,
          &BlockLoad::saved, &BlockLoad::saved_for_weight, &BlockLoad::workspace, &BlockLoad::output})
      out.*bytes = std::max(out.*bytes, other.*bytes * scale);
  }
  return out;
}

// Of several parts, within each and then between them: what a part's ranks have put together leaves through its nodes' adapters.
double CostModel::collective(int devices, std::size_t part, Collective operation, double bytes, profile::ProcessGroup team) const {
  const std::vector<StageDevices::Part>& parts = stand(devices).devices.parts;
  if (parts.size() == 1) return group_of(devices, part).exchanges.collective(operation, bytes, team);
  const bool between = !of_one_group(parts, parts.front().group);
  double inside = 0;
  double rate = std::numeric_limits<double>::infinity();
  for (std::size_t p = 0; p < parts.size(); ++p) {
    inside = std::max(
        inside, group_of(devices, p).exchanges.collective(operation, bytes, {std::max(1, parts[p].ranks / team.stride), team.stride}));
    rate = std::min(rate, node_rate(devices, p, parts[p].ranks, between));
  }
  const auto count = static_cast<double>(parts.size());
  const double ways = operation == Collective::all_reduce ? 2 : 1;
  return inside + ways * bytes * team.stride * (count - 1) / count / rate + 2 * ways * latency_of(devices, part, between);
}

std::pair<double, double> CostModel::least_passes(int repeat, int group) const {
  const Group& of = group_of(group, 0);
  const profile::Calibration& calibration = of.kernels.calibration();
  double product_rate = 0;
  for (const auto& [format, rate] : cluster_.groups[group].device.peak)
    if (format == "fp8")
      product_rate = std::max(product_rate, precision_ == model::Precision::f8 ? rate.value * calibration.matmul_fp8 : 0);
    else if (format != "fp4")
      product_rate = std::max(product_rate, rate.value * calibration.matmul);
  const auto seconds = [&](const std::vector<model::Operator>& operators) {
    double out = 0;
    for (const model::Operator& step : operators)
      out += step.kind == model::Operator::Kind::attention
                 ? of.kernels.attention(step.flops.value, static_cast<double>(step.n), static_cast<double>(step.k))
                 : step.flops.value / product_rate;
    return out;
  };
  const model::BlockCost cost = model::cost_of(of.blocks[repeat].spec, {});
  return {seconds(cost.forward_operators), seconds(cost.backward_operators)};
}

// What does not depend on how the state is sharded is computed once.
const CostModel::Pass& CostModel::pass(int repeat, int g, const plan::Strategy& s, std::int64_t micro_batch) {
  const Group& group = *groups_[g];
  const model::BlockSpec& spec = group.blocks[repeat].spec;
  model::BlockShard shard = shard_of(spec, s, micro_batch, precision_);
  const auto [found, fresh] = passes_.try_emplace({repeat, g, shard});
  if (!fresh) return *found->second;
  Pass& pass = *(found->second = std::make_unique<Pass>());
  pass.time = block_time(shard, stack_, group.kernels, group.exchanges, spec);
  pass.saved_whole = pass.saved = static_cast<double>(model::cost_of(spec, shard).saved.value);
  if (s.recompute == model::Recompute::selective && stack_.selective_is_half) {
    shard.recompute = model::Recompute::none;
    pass.saved_whole = pass.saved = static_cast<double>(model::cost_of(spec, shard).saved.value) / 2;
  }
  if (s.recompute == model::Recompute::full) {
    shard.recompute = model::Recompute::none;
    pass.saved_whole = static_cast<double>(model::cost_of(spec, shard).saved.value);
  }
  return pass;
}

BlockLoad CostModel::priced_on(int repeat, int devices, std::size_t part, const plan::Strategy& s, std::int64_t samples) {
  const std::vector<StageDevices::Part>& parts = stand(devices).devices.parts;
  const int g = stand(devices).priced_as[part];
  require(parts[part].group);
  const std::int64_t micro_batch = this->micro_batch(devices, static_cast<int>(part), s, samples);
  if (!groups_[g]) return measured(repeat, worker(parts[part]), s, micro_batch);
  const Group& group = *groups_[g];
  const profile::Calibration& calibration = group.kernels.calibration();
  const Block& block = group.blocks[repeat];
  const cluster::ResourceGroup& of = cluster_.groups[parts[part].group];
  const Pass& once = pass(repeat, g, s, micro_batch);
  const LayerTime& time = once.time;

  BlockLoad out;
  out.spent = time.forward.spent;
  out.spent += time.backward.spent;
  out.again = time.again.total();
  out.again_exchange = time.again.exchange();
  const double layer_host = block.layer ? calibration.layer_host : 0;
  out.spent.host += layer_host;
  out.forward = time.forward.total() + layer_host;
  out.backward_weight = time.weight_half;
  out.backward_input = time.backward.total() - time.weight_half + time.again.total();
  out.forward_exchange = time.forward.exchange();
  out.backward_exchange = time.backward.exchange() + time.again.exchange();
  const program::HeldParameters held = program::held_parameters(block.spec, s);
  const double shards = s.sharded_over();
  const double expert_shards = s.experts_sharded_over();
  const double trained = stack_.frozen ? kAdapters : 1;
  PassTime forward_pass = time.forward;
  forward_pass.spent.host += layer_host;
  PassTime backward_pass = time.backward;
  backward_pass += time.again;
  // Seconds of the state's exchanges of either pass and of a step, by link.
  using LinkSeconds = std::array<double, kLinkStreams>;
  LinkSeconds every_forward = {}, every_backward = {}, first_forward = {}, last_backward = {};
  for (const program::StateExchange& one :
       program::state_exchanges(held, s, {.weight = kWeight, .gradient = stack_.gradient_bytes, .trained = trained})) {
    const profile::ProcessGroup team{one.ranks, one.stride};
    // A stage on several parts exchanges between them.
    const LinkStream link = parts.size() > 1 ? LinkStream::leaving : link_of(group.exchanges, team);
    LinkSeconds& seconds = one.moment == program::StateMoment::before_forward         ? every_forward
                           : one.moment == program::StateMoment::before_first_forward ? first_forward
                           : one.moment == program::StateMoment::after_last_backward  ? last_backward
                                                                                      : every_backward;
    seconds[static_cast<std::size_t>(link)] += collective(devices, part, collective_of(one.operation), one.bytes, team);
  }
  // Beside the passes of neighbouring blocks, which are taken to be as long as this one's and to use the links like it.
  const auto waited = [&](const LinkSeconds& seconds, const PassTime& pass) {
    if (!calibration.overlaps.state) return seconds[0] + seconds[1];
    double most = 0;
    for (const LinkStream link : {LinkStream::inside, LinkStream::leaving})
      most = std::max(most, added_beside(seconds[static_cast<std::size_t>(link)], pass.free(link), calibration.overlap_slowdown));
    return most;
  };
  const double waited_forward = waited(every_forward, forward_pass);
  const double waited_backward = waited(every_backward, backward_pass);
  out.forward += waited_forward;
  out.backward_input += waited_backward;
  out.forward_exchange += waited_forward;
  out.backward_exchange += waited_backward;
  out.parameter_exchange = waited_forward + waited_backward;
  // Those of a step queue behind those of its pass.
  const auto both = [](const LinkSeconds& a, const LinkSeconds& b) { return LinkSeconds{a[0] + b[0], a[1] + b[1]}; };
  out.exchange = waited(both(every_backward, last_backward), backward_pass) - waited_backward +
                 waited(both(every_forward, first_forward), forward_pass) - waited_forward;
  if (held.tied > 0) {
    // Rank by rank with the same place of another stage: in another domain if there are several, also where ranks are dealt.
    const bool dealt = stand(devices).devices.dealt_over > 0;
    const Group& in_order = dealt ? *groups_[parts[part].group] : group;
    out.tied_exchange = in_order.exchanges.collective(Collective::all_reduce, stack_.gradient_bytes * trained * held.tied,
                                                      {2, of.nodes * of.devices_per_node <= of.domain() ? 1 : of.domain()});
  }

  const double stepped = trained * (held.plain / shards + held.experts / expert_shards);
  const double memory_rate = of.device.memory_bandwidth.value * calibration.memory;
  out.optimizer = s.offload_optimizer ? host_step(stepped, kGradient, kWeight) : stepped * calibration.optimizer_bytes / memory_rate;

  const auto share = [&](int from, double each) {
    return each * (held.plain / (s.zero >= from ? shards : 1) + held.experts / (s.zero >= from ? expert_shards : 1));
  };
  out.weights = share(3, kWeight);
  out.gradients = trained * share(2, kGradient);
  out.optimizer_state = s.offload_optimizer ? 0 : trained * share(1, kState);
  const double tied_state = s.offload_optimizer ? 0 : kState / (s.zero >= 1 ? shards : 1);
  out.tied_bytes = held.tied * (kWeight / (s.zero >= 3 ? shards : 1) + kGradient / (s.zero >= 2 ? shards : 1) + tied_state);

  const double tokens = static_cast<double>(micro_batch) * block.seq / s.cp;
  if (block.head) {
    // Logits in 16 and their gradient in 32 bits while the head runs.
    out.workspace = 6 * tokens * block.vocab / s.tp;
  } else {
    // What other trainers hold between the halves nobody publishes.
    out.saved = out.saved_for_weight = once.saved;
    if (s.tp > 1) out.workspace = 2 * tokens * block.hidden;
  }
  if (held.table_values > 0) {
    // The rows of one micro-batch, each of whose samples looks up some of every table, on a rank.
    const double looked_up =
        kTableValue * static_cast<double>(micro_batch) * block.spec.real("tables") * block.spec.real("lookups") * block.spec.real("dim");
    const bool spread = s.zero == 3 && s.copies() > 1;
    const profile::ProcessGroup peers{s.copies(), s.tp};
    double forward = 0;
    double backward = 0;
    if (spread) {
      // Each rank holds some rows of every table: these go to the ranks that look them up, and their gradients back.
      forward = backward = group.exchanges.all_to_all(looked_up, 1, peers);
    } else if (s.copies() > 1) {
      // Every replica steps the rows that any of them has looked up.
      backward = collective(devices, part, Collective::all_gather, looked_up * s.copies(), peers);
    }
    const double stepped = looked_up * (spread ? 1 : s.copies());
    out.forward += forward;
    out.forward_exchange += forward;
    out.backward_input += backward;
    out.backward_exchange += backward;
    out.parameter_exchange += forward + backward;
    // Gradients are read, rows and moments read and written.
    const double update = 3 * stepped / memory_rate;
    out.backward_weight += update;
    out.spent.elementwise += update;
    const double shards_of_tables = spread ? s.copies() : 1;
    out.weights += kTableValue * held.table_values / shards_of_tables;
    out.optimizer_state += kTableMoment * held.table_rows / shards_of_tables;
  }
  // The whole weights of this block and of the next one, which is on its way.
  if (s.zero == 3) out.workspace += 2 * kWeight * (held.plain + held.experts);
  out.workspace += once.saved_whole - once.saved;
  return out;
}

double CostModel::input_bytes(int repeat, std::int64_t samples) const {
  return (precision_ == model::Precision::f32 ? 4 : 2) * elements_before_[repeat] * static_cast<double>(samples);
}

double CostModel::reshard(int repeat, int devices, const plan::Strategy& before, const plan::Strategy& strategy, std::int64_t samples) {
  const bool alike = before.same_layout(strategy);
  if (alike && before.sequence_parallel == strategy.sequence_parallel) return 0;
  const std::vector<StageDevices::Part>& parts = stand(devices).devices.parts;
  return most(devices, [&](std::size_t part) {
    // Each rank gathers the larger of its two shares from those that the coarser of the cuts puts together.
    const int width = parts.size() == 1 ? strategy.ranks() : parts[part].ranks;
    const int together = std::max(before.tp * before.cp, strategy.tp * strategy.cp);
    const int pieces = std::min(width / before.tp, width / strategy.tp);
    const double bytes = input_bytes(repeat, parts.size() == 1 ? samples : parts[part].samples) / pieces;
    const double seconds = plays_exchanges(devices)
                               ? exchange("all_gather", static_cast<std::int64_t>(bytes), together,
                                          link_among(parts[part], cluster_group(devices, part), together), profile::Pace::in_turn)
                               : group_of(devices, part).exchanges.collective(Collective::all_gather, bytes, {together, 1});
    // Rows that only sequence parallelism cuts are gathered in one of the two passes, and left out in the other.
    return alike ? seconds / 2 : seconds;
  });
}

// Of all adapters of a part's nodes, or of the links between groups.
double CostModel::node_rate(int devices, std::size_t part, int width, bool between) const {
  const StageDevices& of = stand(devices).devices;
  const cluster::ResourceGroup& group = cluster_.groups[of.parts[part].group];
  const double nodes = std::max(1.0, static_cast<double>(width) / (of.per_node > 0 ? of.per_node : group.devices_per_node));
  const cluster::Link& link = between ? cluster_.between : group.network;
  return nodes * link.bandwidth.value * (between ? 1 : group.adapters) * group_of(devices, part).kernels.calibration().network;
}

double CostModel::latency_of(int devices, std::size_t part, bool between) const {
  const cluster::ResourceGroup& group = cluster_group(devices, part);
  return std::max(group_of(devices, part).kernels.calibration().latency, (between ? cluster_.between : group.network).latency.value);
}

// Of a message between all ranks of a stage so wide.
double CostModel::waited_message(int devices, std::size_t part, double seconds, double bytes, int width) const {
  const cluster::ResourceGroup& group = cluster_group(devices, part);
  const double beside = layer_flops_ * bytes / (width * group.device.peak_of(precision_).value);
  const profile::Calibration& calibration = group_of(devices, part).kernels.calibration();
  return calibration.overlaps.messages ? added_beside(seconds, beside, calibration.overlap_slowdown) : seconds;
}

// Rank to rank, the stages side by side on a node if it has room for both.
double CostModel::played_message(double bytes, int from, int width_from, int to, int width_to) const {
  const StageDevices::Part& sender = stand(from).devices.parts.front();
  const cluster::ResourceGroup& group = cluster_.groups[sender.group];
  const cluster::Link& link =
      sender.group != stand(to).devices.parts.front().group ? cluster_.between : link_among(sender, group, width_from + width_to);
  return exchange("send", static_cast<std::int64_t>(bytes / std::min(width_from, width_to)), 2, link, profile::Pace::in_turn);
}

double CostModel::message(double bytes, int from, int width_from, int to, int width_to) {
  if (plays_exchanges(from) || plays_exchanges(to)) return played_message(bytes, from, width_from, to, width_to);
  const StageDevices& senders = stand(from).devices;
  const StageDevices& receivers = stand(to).devices;
  const auto share_of = [](const StageDevices& devices, std::size_t part) {
    double samples = 0;
    for (const StageDevices::Part& each : devices.parts) samples += static_cast<double>(each.samples);
    return devices.parts.size() == 1 ? 1 : static_cast<double>(devices.parts[part].samples) / samples;
  };
  if (from == to && width_from == width_to)
    return most(from, [&](std::size_t part) {
      const int width = senders.parts.size() == 1 ? width_from : senders.parts[part].ranks;
      const int group = senders.parts[part].group;
      const profile::Exchanges& exchanges = groups_[group]->exchanges;
      const double share = bytes * share_of(senders, part);
      // Stages that share nodes are neighbours there.
      const double seconds =
          senders.per_node > 0 ? exchanges.message(share / width, senders.per_node) : exchanges.stage_message(share / width, width);
      return waited_message(from, part, seconds, share, width);
    });
  const int group = senders.parts.front().group;
  const bool between = !of_one_group(senders.parts, group) || !of_one_group(receivers.parts, group);
  // Through the adapters of the nodes of the slower side.
  const auto seconds = [&](int devices, const StageDevices& of, int width) {
    return most(devices, [&](std::size_t part) {
      return bytes * share_of(of, part) / node_rate(devices, part, of.parts.size() == 1 ? width : of.parts[part].ranks, between);
    });
  };
  const double all = std::max(seconds(from, senders, width_from), seconds(to, receivers, width_to)) +
                     2 * std::max(latency_of(from, 0, between), latency_of(to, 0, between));
  const int width = senders.parts.size() == 1 ? width_from : senders.parts.front().ranks;
  return waited_message(from, 0, all, bytes * share_of(senders, 0), width);
}

double CostModel::most_calibrated(int devices, double profile::Calibration::*value) const {
  return most(devices, [&](std::size_t part) {
    const std::unique_ptr<Group>& group = groups_[stand(devices).priced_as[part]];
    return group ? group->kernels.calibration().*value : 0;
  });
}
bool CostModel::attention_is_fused(int devices) const {
  return !most(devices, [&](std::size_t part) {
    return group_of(devices, part).kernels.calibration().attention != profile::AttentionKernel::fused;
  });
}

}  // namespace tessera::cost
