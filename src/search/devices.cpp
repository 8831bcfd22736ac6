#include "search/devices.hpp"

#include <algorithm>
#include <map>

#include "base/error.hpp"
#include "model/forms.hpp"
#include "plan/tensor_cut.hpp"
#include "search/outer_choices.hpp"
#include "search/search.hpp"

namespace tessera::search {
namespace {

using model::ClusterChoice;

std::vector<NodeRanks> worker_ranks(const model::JobSpec& job, const cluster::ResourceGroup& group) {
  const model::ParallelChoice& parallel = job.parallel;
  const int cores = std::max(1, group.device.cores);
  const auto sharing = [&](int workers, int given) { return NodeRanks{workers, given > 0 ? given : std::max(1, cores / workers)}; };
  if (job.cluster.kind == ClusterChoice::Kind::local)
    return {sharing(job.cluster.devices, job.cluster.threads > 0 ? job.cluster.threads : parallel.threads)};
  if (job.cluster.kind == ClusterChoice::Kind::lab) return {sharing(1, parallel.threads)};
  std::vector<NodeRanks> out;
  for (const std::int64_t workers : plan::divisors_of(cores))
    if (workers <= group.devices_per_node) out.push_back(sharing(static_cast<int>(workers), parallel.threads));
  if (out.empty()) out.push_back(sharing(1, parallel.threads));
  // Degrees that the user fixes may ask for more workers than there are cores, or for a number that does not divide them.
  const int product = std::max(1, parallel.dp) * std::max(1, parallel.pp) * std::max(1, parallel.tp) * std::max(1, parallel.cp);
  const bool all_fixed = parallel.dp > 0 && parallel.pp > 0 && parallel.tp > 0 && (parallel.cp > 0 || !job.data.lengths);
  const bool listed = std::ranges::any_of(out, [&](const NodeRanks& ranks) { return ranks.count == product; });
  if (!listed && (all_fixed || product > out.back().count)) {
    out.push_back(sharing(product, parallel.threads));
    out.back().most_nodes = 1;
  }
  return out;
}

// Any part of one node, or whole nodes.
std::vector<NodeRanks> device_ranks(const cluster::ResourceGroup& group) {
  std::vector<NodeRanks> out;
  for (int count = 1; count < group.devices_per_node; ++count) out.push_back({count, 0, 1});
  out.push_back({group.devices_per_node});
  return out;
}

}  // namespace

std::vector<Devices> devices_of(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const std::vector<std::string>& vendors) {
  const model::Precision precision = job.train.precision;
  std::map<std::pair<bool, bool>, Devices> out;  // by whether calibrations say nothing, and whether they are CPU hosts
  for (std::size_t g = 0; g < cluster.groups.size(); ++g) {
    const cluster::ResourceGroup& group = cluster.groups[g];
    const bool workers = group.device.shares_host();
    if (!vendors.empty() && std::ranges::find(vendors, group.device.vendor) == vendors.end()) continue;
    if (!group.device.has(precision) || (job.cluster.kind == ClusterChoice::Kind::local && !workers)) continue;
    const bool uniform = !group.device.accelerates(precision);
    Devices& devices = out[{uniform, workers}];
    devices.groups.push_back(static_cast<int>(g));
    devices.uniform = uniform;
    devices.workers = workers;
    devices.trained = workers || !vendors.empty();
    devices.node_ranks.resize(cluster.groups.size());
    devices.node_ranks[g] = workers   ? worker_ranks(job, group)
                            : uniform ? device_ranks(group)
                                      : std::vector<NodeRanks>{{group.devices_per_node}};
  }
  std::vector<Devices> list;
  for (auto& [kind, devices] : out) list.push_back(std::move(devices));
  return list;
}

int most_ranks(const cluster::ResourceGroup& group, const std::vector<NodeRanks>& ways) {
  int out = 0;
  for (const NodeRanks& ranks : ways) out = std::max(out, std::min(group.nodes, ranks.most_nodes) * ranks.count);
  return out;
}

bool counts_hosts(const model::JobSpec& job) {
  return job.cluster.kind == ClusterChoice::Kind::local || job.cluster.kind == ClusterChoice::Kind::lab;
}

BlockSpace space_of(const model::JobSpec& job, const Devices& devices) {
  BlockSpace out = space_of(job.parallel);
  out.groups = devices.groups;
  out.node_ranks = devices.node_ranks;
  if (job.data.lengths) {
    out.mixed_groups = false;  // samples are dealt to ranks that are equally fast
    // Ranks make passes of their own number, which cannot gather and reduce together.
    if (!job.parallel.zero) std::erase_if(out.zero, [](int zero) { return zero > 1; });
  }
  if (plan::stands_whole(job.model, devices.trained)) {
    out.most_context = 1;
    out.whole_blocks = true;
    const std::vector<model::Repeat>& repeats = job.model.repeats;
    if (std::ranges::none_of(repeats, [](const model::Repeat& repeat) { return model::cut_by_nn(repeat.block); })) out.most_tensor = 1;
    std::erase(out.recompute, model::Recompute::selective);
  }
  out.experts_cross_hosts = job.train.placement.kind != model::PlacementKind::off;
  if (!devices.uniform) return out;
  out.uniform = true;
  if (!job.data.lengths || job.parallel.cp > 0) out.most_context = std::min(out.most_context, std::max(1, job.parallel.cp));
  out.offload = false;
  if (!job.parallel.sequence_parallel) out.sequence_parallel = SequenceParallel::never;
  if (job.parallel.recompute.empty()) std::erase(out.recompute, model::Recompute::selective);
  if (job.parallel.schedule.empty()) {
    out.schedules = {plan::Schedule::one_f_one_b, plan::Schedule::gpipe, plan::Schedule::zb_h1, plan::Schedule::zb_v};
    out.own_orders = true;
  }
  out.idle_nodes = !counts_hosts(job);
  out.mixed_groups = !job.data.lengths && (out.idle_nodes || devices.groups.size() > 1);
  return out;
}

BySpeed::BySpeed(const cluster::ClusterSpec& cluster) : cluster_(cluster) {
  const bool even = std::ranges::all_of(cluster.groups, [](const cluster::ResourceGroup& group) {
    return std::adjacent_find(group.speeds.begin(), group.speeds.end(), std::not_equal_to<>()) == group.speeds.end();
  });
  if (even) return;
  split_ = cluster;
  split_->groups.clear();
  for (std::size_t g = 0; g < cluster.groups.size(); ++g) {
    const cluster::ResourceGroup& whole = cluster.groups[g];
    for (int first = 0, last = 0; first < whole.nodes; first = last) {
      while (last < whole.nodes && whole.speed_of(last) == whole.speed_of(first)) ++last;
      cluster::ResourceGroup& part = split_->groups.emplace_back(whole);
      part.nodes = last - first;
      part.speeds.assign(part.nodes, whole.speed_of(first));
      if (part.nodes < whole.nodes) part.name += text(" at ", fixed(whole.speed_of(first), 2), " x");
      first_node_.emplace_back(static_cast<int>(g), first);
    }
  }
  if (cluster.groups.size() == 1) split_->between = cluster.groups.front().network;
}

void BySpeed::restore(plan::Plan& plan) const {
  if (!split_) return;
  for (plan::RankPlace& place : plan.ranks) {
    const auto& [group, node] = first_node_.at(place.group);
    place.group = group;
    place.node += node;
  }
  plan.cluster_fingerprint = cluster_.fingerprint();
}

std::vector<WorkerShape> worker_shapes(const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  std::vector<WorkerShape> out;
  for (const Devices& devices : devices_of(job, cluster, {"cpu"}))
    for (const int group : devices.groups)
      for (const NodeRanks& ranks : devices.node_ranks[group]) {
        const WorkerShape shape{ranks.count, ranks.threads};
        Devices alone = devices;
        alone.groups = {group};
        alone.node_ranks[group] = {ranks};
        const BlockProblem problem{.model = job.model,
                                   .cluster = cluster,
                                   .precision = job.train.precision,
                                   .global_batch = job.train.global_batch,
                                   .space = space_of(job, alone)};
        if (std::ranges::find(out, shape) == out.end() && !outer_choices(problem).outers.empty()) out.push_back(shape);
      }
  std::ranges::stable_sort(out, {}, &WorkerShape::workers);
  return out;
}

}  // namespace tessera::search
