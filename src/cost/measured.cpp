// Times from a profile, and by a roofline where it has none. They say nothing about what computing hides of an exchange: exchanges are
// listed beside them, for a clock to play through.
#include <algorithm>

#include "cost/block_time.hpp"
#include "cost/cost_model.hpp"
#include "program/state_exchanges.hpp"

namespace tessera::cost {
namespace {

// A worker with its libraries loaded, before it holds a tensor, where no profile says.
constexpr double kBaseline = 320.0 * (1 << 20);
// What a worker that computes holds beyond the tensors: packed operands of its matrix products, stacks, the token cache's
// pages, the run's files. 26 to 32 MiB over the plans of one worker and of data-parallel ones, and a dozen more for small tensors that
// begin huge pages.
constexpr double kWorking = 40.0 * (1 << 20);

// What tensors that come and go take of a CPU's memory, for a byte of theirs: the allocator's size classes lie a seventh to a quarter
// apart, and in huge pages what a tensor leaves of its class is resident, too.
constexpr double kSizeClasses = 1.08;

// Of the exchange of a block's gradients, at least, roughly: the last bucket has nothing to stand beside.
constexpr double kExposed = 0.1;

// Bytes of a parameter.
struct StateBytes {
  double weight = 0;
  double gradient = 0;
  double optimizer = 0;
};

// f32 computes on its master weights; bf16 has a copy beside them. Gradients are f32 in both.
StateBytes state_bytes(model::Precision precision, const model::OptimizerSpec& optimizer) {
  const bool adamw = optimizer.kind == model::OptimizerKind::adamw;
  const double moments = adamw ? 8 : optimizer.momentum != 0 ? 4 : 0;
  return precision == model::Precision::f32 ? StateBytes{4, 4, moments} : StateBytes{2, 4, 4 + moments};
}

double flops_of(const std::vector<model::Operator>& operators) {
  double sum = 0;
  for (const model::Operator& one : operators) sum += one.flops.value;
  return sum;
}

}  // namespace

const CostModel::Timed& CostModel::timed(int repeat, const plan::Worker& worker, const model::BlockShard& shard) {
  const auto [found, fresh] = timed_.try_emplace({repeat, worker, shard});
  if (!fresh) return found->second;
  const model::BlockSpec& spec = model_.repeats[repeat].block;
  model::BlockShard plain = shard;
  plain.recompute = model::Recompute::none;
  const profile::BlockTime time =
      profile::block_time(profile_, spec, plain, cluster_.groups[worker.group].device, worker.threads, worker.neighbours);
  const double forward = time.forward.value / worker.speed;
  const double backward = time.backward.value / worker.speed;
  Timed out{model::cost_of(spec, shard), 0, forward, backward, backward * time.weight_share, 0};
  const bool again = shard.recompute != model::Recompute::none;
  out.saved_whole = static_cast<double>((again ? model::cost_of(spec, plain) : out.cost).saved.value);
  const double whole = flops_of(out.cost.forward_operators);
  // Whole blocks are timed: what is repeated of one takes its share of the flops.
  if (shard.recompute == model::Recompute::full)
    out.again = out.forward;
  else if (again && whole > 0)
    out.again = out.forward * flops_of(out.cost.recomputed_operators) / whole;
  return found->second = std::move(out);
}

BlockLoad CostModel::measured(int repeat, const plan::Worker& worker, const plan::Strategy& s, std::int64_t micro_batch) {
  model::BlockShard shard = shard_of(model_.repeats[repeat].block, s, micro_batch, precision_);
  const bool end = repeat == 0 || repeat + 1 == static_cast<int>(model_.repeats.size());
  if (end && model_.repeats[repeat].count == 1) shard.recompute = model::Recompute::none;
  const Timed& time = timed(repeat, worker, shard);
  const cluster::ResourceGroup& group = cluster_.groups[worker.group];
  // The shorter of what exchanges take alone and in turn with computing: no less, wherever the peers stand.
  const auto link_among = [&](int ranks) -> const cluster::Link& {
    return ranks <= (group.device.is_cpu() ? worker.neighbours : group.devices_per_node) ? group.inside : group.network;
  };
  const auto exchanged = [&](const std::vector<model::Exchange>& exchanges) {
    double seconds = 0;
    for (const model::Exchange& one : exchanges) {
      const auto [ranks, stride] = team_of(one.axis, shard);
      const cluster::Link& link = link_among(ranks * stride);
      seconds += std::min(exchange(one, ranks, link, profile::Pace::alone), exchange(one, ranks, link, profile::Pace::in_turn));
    }
    return seconds;
  };
  BlockLoad out;
  out.forward_played = time.cost.forward_exchanges;
  out.backward_played = time.cost.backward_exchanges;
  out.backward_played.insert(out.backward_played.end(), time.cost.recomputed_exchanges.begin(), time.cost.recomputed_exchanges.end());
  out.forward_exchange = exchanged(out.forward_played);
  out.backward_exchange = exchanged(out.backward_played);
  out.again_exchange = exchanged(time.cost.recomputed_exchanges);
  out.spent.tensor_exchange = out.forward_exchange + out.backward_exchange - out.again_exchange;
  out.again = time.again + out.again_exchange;
  out.forward = time.forward + out.forward_exchange;
  out.backward_weight = time.backward_weight;
  out.backward_input = time.backward - time.backward_weight + time.again + out.backward_exchange;

  const program::HeldParameters held = program::held_parameters(model_.repeats[repeat].block, s);
  // By degrees of their own: of what is sharded over no rank all is held.
  struct Held {
    double parameters;
    int copies;  // ranks that hold the same, each `step` after the one before it
    int step;
    double shards;
  };
  const Held parts[] = {{held.plain, s.copies(), s.tp, static_cast<double>(s.sharded_over())},
                        {held.experts, s.expert_copies(), s.expert_tp() * s.ep, static_cast<double>(s.experts_sharded_over())}};
  StateBytes state = state_bytes(precision_, optimizer_);
  // A CPU's memory is the host's: there the state is where it is without.
  const bool on_host = s.offload_optimizer && !group.device.is_cpu();
  if (on_host) state.optimizer = 0;
  double all = 0;       // seconds of the exchange of gradients and weights
  double stepped = 0;   // parameters
  double gathered = 0;  // bytes that passes hold for a while
  for (const Held& of : parts) {
    if (of.copies > 1 && of.parameters > 0) {
      const auto seconds = [&](const char* operation) {
        return exchange(operation, static_cast<std::int64_t>(of.parameters * 4), of.copies, link_among(of.copies * of.step),
                        profile::Pace::alone);
      };
      // Under ZeRO-3 weights are gathered for every pass.
      all += of.shards > 1 ? seconds("reduce_scatter") + (s.zero == 3 ? 2 : 1) * seconds("all_gather") : seconds("all_reduce");
    }
    stepped += of.parameters / of.shards;
    out.weights += of.parameters * state.weight / (s.zero == 3 ? of.shards : 1);
    out.gradients += of.parameters * state.gradient / (s.zero >= 2 ? of.shards : 1);
    out.optimizer_state += of.parameters * state.optimizer / of.shards;
    // Of the pass under way, and of the next or of the one before.
    if (of.shards > 1 && s.zero == 3) gathered += 2 * of.parameters * state.weight;
    if (of.shards > 1 && s.zero >= 2) gathered += 2 * of.parameters * state.gradient;
  }
  // What is computed again is no better for it.
  if (all > 0) out.exchange = std::max(kExposed * all, all - time.backward);
  out.optimizer = on_host ? host_step(stepped, state.gradient, state.weight) : optimizer(static_cast<std::int64_t>(stepped), worker);
  out.tied_gradients = held.tied * state.gradient;
  out.tied_bytes = held.tied * (state.weight + state.optimizer / s.sharded_over()) + out.tied_gradients;

  out.saved = static_cast<double>(time.cost.saved.value);
  out.saved_for_weight = static_cast<double>(time.cost.saved_for_weight.value);
  out.output = static_cast<double>(time.cost.output.value);
  const double scratch = s.tp > 1 ? static_cast<double>(time.cost.all_reduce_size.value) : 0;
  out.workspace = scratch + std::max(static_cast<double>(time.cost.forward_workspace.value) + out.output,
                                     static_cast<double>(time.cost.backward_workspace.value) + 2 * out.output +
                                         std::max(0.0, time.saved_whole - out.saved));
  out.workspace += gathered;
  if (group.device.is_cpu())
    for (double BlockLoad::*bytes : {&BlockLoad::saved, &BlockLoad::saved_for_weight, &BlockLoad::output, &BlockLoad::workspace})
      out.*bytes *= kSizeClasses;
  return out;
}

double CostModel::optimizer(int devices, int part, std::int64_t parameters) const {
  return optimizer(parameters, worker(stand(devices).devices.parts[std::max(0, part)]));
}

double CostModel::optimizer(std::int64_t parameters, const plan::Worker& worker) const {
  return profile::optimizer_time(profile_, optimizer_.kind == model::OptimizerKind::adamw ? "adamw" : "sgd", parameters, precision_,
                                 cluster_.groups[worker.group].device, worker.threads, worker.neighbours)
             .value /
         worker.speed;
}

double CostModel::exchange(const std::string& operation, std::int64_t bytes, int ranks, const cluster::Link& link,
                           profile::Pace pace) const {
  const bool inside = std::any_of(cluster_.groups.begin(), cluster_.groups.end(),
                                  [&](const cluster::ResourceGroup& group) { return &group.inside == &link; });
  return profile::collective_time(profile_, operation, Bytes(bytes), ranks, link, inside ? profile::Medium::bus : profile::Medium::adapter,
                                  pace)
      .value;
}

double CostModel::exchange(const model::Exchange& one, int ranks, const cluster::Link& link, profile::Pace pace) const {
  return one.messages * exchange(one.operation, one.bytes.value / one.messages, ranks, link, pace);
}

profile::Overlap CostModel::overlap(const std::string& operation, int ranks, const cluster::Link& link) const {
  return profile::overlap_of(profile_, operation, ranks, link);
}

const profile::RowsSample* CostModel::rows(const std::string& operation) const {
  const auto found = std::find_if(profile_.rows.begin(), profile_.rows.end(),
                                  [&](const profile::RowsSample& sample) { return sample.operation == operation; });
  return found == profile_.rows.end() ? nullptr : &*found;
}

double CostModel::worker_bytes() const {
  const auto measured = static_cast<double>(profile_.process_baseline.value);
  return measured > 0 ? measured + kWorking : kBaseline;
}

}  // namespace tessera::cost
