#include "plan/exhausted.hpp"

#include <algorithm>
#include <map>

#include "plan/balance.hpp"
#include "plan/divisors.hpp"

namespace tessera::plan {
namespace {

// Bytes on each device, or host of CPU workers.
std::map<std::tuple<int, int, int>, Bytes> occupancy(const Plan& plan, const std::vector<Bytes>& memory, const cluster::ClusterSpec& cluster) {
  std::map<std::tuple<int, int, int>, Bytes> out;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    const RankPlace& place = plan.ranks[rank];
    const bool cpu = cluster.groups[place.group].device.is_cpu();
    out[{place.group, place.node, cpu ? -1 : place.device}] += memory[rank];
  }
  return out;
}

// The smallest number of devices like these on which some plan fits, by trying more and more nodes; 0 when none does.
int devices_that_fit(const model::JobSpec& job, const cluster::ClusterSpec& cluster, int group, const profile::Profile& profile) {
  constexpr int kMostFactor = 1024;
  for (int factor = 2; factor <= kMostFactor; factor *= 2) {
    cluster::ClusterSpec larger = cluster;
    larger.groups[group].nodes *= factor;
    Prices prices(job.model, job.train, larger, profile);
    const WorkerLayout layout{group, larger.groups[group].nodes, larger.groups[group].device.is_cpu() ? 1 : larger.groups[group].devices_per_node,
                              std::max(1, larger.groups[group].device.cores)};
    for (const Point& point : points(job, layout)) {
      const std::vector<int> cuts = balance(block_seconds(job, point, prices), point.pp);
      for (const Variant& variant : variants(job, point)) {
        const Plan plan = plan_of(job, larger, point, variant, cuts);
        if (shortfall(plan, memory_of(plan, prices), larger) == Bytes(0)) return layout.world();
      }
    }
  }
  return 0;
}

}  // namespace

Bytes shortfall(const Plan& plan, const std::vector<Bytes>& memory, const cluster::ClusterSpec& cluster) {
  Bytes most(0);
  for (const auto& [where, bytes] : occupancy(plan, memory, cluster))
    most = std::max(most, bytes - memory_limit(cluster.groups[std::get<0>(where)].device));
  return most;
}

Error nothing_divides(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const std::vector<WorkerLayout>& layouts) {
  const int world = layouts.back().world();
  std::vector<std::int64_t> valid;
  for (int count = 1; count <= 2 * world; ++count)
    if (!points(job, {layouts.back().group, 1, count, 1}).empty()) valid.push_back(count);
  const std::string what = text("no dp x pp x tp = ", world, " workers of ", cluster.name, " divides global_batch ", job.train.global_batch, ", ",
                                job.model.block_count(), " blocks and ", job.model.dim("kv_heads"), " key-value heads");
  return {ErrorCode::invalid_config, what, job.parallel.where, "degrees that divide",
          valid.empty() ? "let more of them be chosen: parallel: auto" : text("nearest: ", nearest_of(valid, world), " workers")};
}

Error nothing_fits(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Plan& smallest, Prices& prices) {
  const std::vector<Bytes> memory = memory_of(smallest, prices);
  const int group = smallest.ranks.front().group;
  const cluster::Device& device = cluster.groups[group].device;
  const Bytes limit = memory_limit(device);
  const Bytes missing = shortfall(smallest, memory, cluster);
  const Strategy& strategy = smallest.stages.front().runs.front().strategy;
  const std::string owner = device.is_cpu() ? text("the host's ", to_text(limit), " (of ", to_text(device.memory), ")")
                                            : text("the ", to_text(limit), " of each ", device.name, " (of ", to_text(device.memory), ")");
  const std::string what = text("no plan fits: the smallest (dp ", strategy.dp, " x pp ", smallest.stages.size(), " x tp ", strategy.tp, ", micro-batch ",
                                smallest.micro_batch(strategy.dp), ", recompute ", model::name_of(strategy.recompute), ") needs ", to_text(limit + missing),
                                ", ", to_text(missing), " more than ", owner);
  std::vector<std::string> ideas;
  const model::ParallelChoice& parallel = job.parallel;
  if (parallel.recompute == "none") ideas.push_back("recompute: full");
  if (parallel.micro_batches > 0 && parallel.micro_batches * strategy.dp < job.train.global_batch)
    ideas.push_back(text("micro_batches: ", job.train.global_batch / strategy.dp));
  if (parallel.kind == model::ParallelChoice::Kind::degrees && parallel.zero == 0 && strategy.dp > 1) ideas.push_back("zero: 1");
  if (parallel.kind == model::ParallelChoice::Kind::degrees) ideas.push_back("parallel: auto");
  if (job.cluster.kind == model::ClusterChoice::Kind::local && job.cluster.devices > 1) ideas.push_back("fewer workers on this host");
  if (job.cluster.kind == model::ClusterChoice::Kind::automatic || job.cluster.kind == model::ClusterChoice::Kind::file)
    if (const int devices = devices_that_fit(job, cluster, group, prices.profile()); devices > 0)
      ideas.push_back(text(devices, device.is_cpu() ? " such hosts" : " such devices"));
  ideas.push_back(text(device.is_cpu() ? "a host with " : "devices with ", to_text(Bytes(static_cast<std::int64_t>(static_cast<double>((limit + missing).value) / static_cast<double>(limit.value) * static_cast<double>(device.memory.value))))));
  ideas.push_back("a smaller model or seq");
  std::string hint;
  for (const std::string& idea : ideas) hint += (hint.empty() ? "" : "; ") + idea;
  return {ErrorCode::resource_exhausted, what, job.parallel.where, {}, "what would fit: " + hint};
}

}  // namespace tessera::plan
