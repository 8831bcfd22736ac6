#include "search/exhausted.hpp"
#include "cost/cost.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "plan/divisors.hpp"
#include "search/balance.hpp"

namespace tessera::search {
namespace {

// Bytes on each device, or host of CPU workers.
std::map<std::tuple<int, int, int>, Bytes> occupancy(const plan::Plan& plan, const std::vector<Bytes>& memory,
                                                     const cluster::ClusterSpec& cluster) {
  std::map<std::tuple<int, int, int>, Bytes> out;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    const plan::RankPlace& place = plan.ranks[rank];
    const bool cpu = cluster.groups[place.group].device.is_cpu();
    out[{place.group, place.node, cpu ? -1 : place.device}] += memory[rank];
  }
  return out;
}

// Whether any plan of the space fits the memory. Tries the largest layouts first: they hold the least each.
bool some_plan_fits(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const profile::Profile& profile) {
  cost::CostModel cost_model(job.model, job.train, cluster, profile);
  const std::vector<WorkerLayout> all = layouts(job, cluster, {});
  for (auto layout = all.rbegin(); layout != all.rend(); ++layout)
    for (const Point& point : points(job, cluster, *layout)) {
      const std::vector<int> cuts = balance(block_seconds(job, point, cost_model), point.pp);
      for (const Variant& variant : variants(job, point)) {
        const plan::Plan plan = plan_of(job, cluster, point, variant, cuts);
        if (shortfall(plan, memory_of(plan, cost_model), cluster) == Bytes(0)) return true;
      }
    }
  return false;
}

// The smallest number of nodes of the group with which some plan fits; 0 when none is found.
int nodes_that_fit(const model::JobSpec& job, const cluster::ClusterSpec& cluster, int group, const profile::Profile& profile) {
  constexpr int kMostFactor = 256;
  constexpr int kMostTries = 8;
  constexpr int kMostDevices = 1 << 14;
  const int now = cluster.groups[group].nodes;
  const auto fits = [&](int nodes) {
    cluster::ClusterSpec larger = cluster;
    larger.groups[group].nodes = nodes;
    return some_plan_fits(job, larger, profile);
  };
  for (int factor = 2; factor <= kMostFactor && now * factor * cluster.groups[group].devices_per_node <= kMostDevices; factor *= 2) {
    if (!fits(now * factor)) continue;
    // Between the last number that was too small and this one, as many as there is time for.
    for (int nodes = now * factor / 2 + 1, tries = 0; nodes < now * factor && tries < kMostTries; ++nodes, ++tries)
      if (fits(nodes)) return nodes;
    return now * factor;
  }
  return 0;
}

// The job as it would be with one more override; nothing where that cannot be.
std::optional<model::JobSpec> changed(const model::JobSpec& job, const std::string& key, const std::string& value) {
  try {
    model::JobSpec out = model::read_job(ConfigNode::parse(job.resolved_yaml, job.file.string()).with_override(key, value));
    if (!key.starts_with("cluster.")) out.cluster = job.cluster;
    return out;
  } catch (const Error&) {
    return std::nullopt;
  }
}

struct Change {
  std::string key;
  std::vector<std::string> values;  // the smallest change first
};

// What the job says that costs memory.
std::vector<Change> changes(const model::JobSpec& job, const plan::Strategy& smallest) {
  const model::ParallelChoice& parallel = job.parallel;
  std::vector<Change> out;
  if (parallel.recompute == "none") out.push_back({"parallel.recompute", {"full"}});
  if (parallel.micro_batches > 0) {
    Change more{"parallel.micro_batches", {}};
    for (std::int64_t count : plan::divisors_of(job.train.global_batch / smallest.dp))
      if (count > parallel.micro_batches) more.values.push_back(text(count));
    out.push_back(more);
  }
  if (parallel.zero == 0 && smallest.dp > 1) out.push_back({"parallel.zero", {"1"}});
  if (parallel.kind == model::ParallelChoice::Kind::degrees) out.push_back({"parallel", {"auto"}});
  if (job.cluster.kind == model::ClusterChoice::Kind::local) {
    Change fewer{"cluster.local.devices", {}};
    for (int count = job.cluster.devices - 1; count > 0; --count) fewer.values.push_back(text(count));
    out.push_back(fewer);
  }
  if (job.model.dims.contains("seq")) {
    constexpr std::int64_t kShortest = 128;
    Change shorter{"model.seq", {}};
    for (std::int64_t seq = job.model.dim("seq") / 2; seq >= kShortest; seq /= 2) shorter.values.push_back(text(seq));
    out.push_back(shorter);
  }
  return out;
}

}  // namespace

std::string largest_parts(const plan::Plan& plan, const std::vector<Bytes>& memory, cost::CostModel& cost_model) {
  std::vector<std::pair<std::string, Bytes>> parts =
      memory_terms(plan, static_cast<int>(std::max_element(memory.begin(), memory.end()) - memory.begin()), cost_model);
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr std::size_t kShown = 3;
  std::string out;
  for (std::size_t i = 0; i < std::min(kShown, parts.size()); ++i)
    out += text(i == 0 ? "" : ", ", parts[i].first, ' ', to_text(parts[i].second));
  return out;
}

std::string rounded_up(double bytes) {
  const int shift = bytes > 16.0 * (1 << 30) ? 30 : 20;
  return text(static_cast<std::int64_t>(std::ceil(bytes / static_cast<double>(std::int64_t{1} << shift))), shift == 30 ? " GiB" : " MiB");
}

Bytes shortfall(const plan::Plan& plan, const std::vector<Bytes>& memory, const cluster::ClusterSpec& cluster) {
  Bytes most(0);
  for (const auto& [where, bytes] : occupancy(plan, memory, cluster))
    most = std::max(most, bytes - cost::memory_limit(cluster.groups[std::get<0>(where)].device));
  return most;
}

Usage fullest(const plan::Plan& plan, const std::vector<Bytes>& memory, const cluster::ClusterSpec& cluster) {
  Usage most{Bytes(0), Bytes(1)};
  for (const auto& [where, bytes] : occupancy(plan, memory, cluster)) {
    const Usage here{bytes, cost::memory_limit(cluster.groups[std::get<0>(where)].device)};
    if (here.share() > most.share()) most = here;
  }
  return most;
}

Error nothing_divides(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const std::vector<WorkerLayout>& layouts) {
  const int world = layouts.back().world();
  std::vector<std::int64_t> valid;
  for (int count = 1; count <= 2 * world; ++count)
    if (!points(job, cluster, {layouts.back().group, 1, count, 1, {}}).empty()) valid.push_back(count);
  const std::string what = text("no dp x pp x tp = ", world, " workers of ", cluster.name, " divides global_batch ", job.train.global_batch,
                                ", ", job.model.block_count(), " blocks and ", job.model.dim("kv_heads"), " key-value heads");
  return {ErrorCode::invalid_config, what, job.parallel.where, "degrees that divide",
          valid.empty() ? "let more of them be chosen: parallel: auto" : text("nearest: ", plan::nearest_of(valid, world), " workers")};
}

Error nothing_fits(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const plan::Plan& smallest,
                   const profile::Profile& profile) {
  cost::CostModel cost_model(job.model, job.train, cluster, profile);
  const std::vector<Bytes> memory = memory_of(smallest, cost_model);
  // Where most is missing.
  int group = smallest.ranks.front().group;
  Bytes most(0);
  for (const auto& [where, bytes] : occupancy(smallest, memory, cluster)) {
    const Bytes over = bytes - cost::memory_limit(cluster.groups[std::get<0>(where)].device);
    if (over <= most) continue;
    most = over;
    group = std::get<0>(where);
  }
  const cluster::Device& device = cluster.groups[group].device;
  const Bytes limit = cost::memory_limit(device);
  const Bytes missing = shortfall(smallest, memory, cluster);
  const plan::Strategy& strategy = smallest.stages.front().runs.front().strategy;
  const std::string owner = device.is_cpu() ? text("the host's ", to_text(limit), " (of ", to_text(device.memory), ")")
                                            : text("the ", to_text(limit), " of each ", device.name, " (of ", to_text(device.memory), ")");
  const std::string what =
      text("no plan fits: the smallest (dp ", strategy.dp, " x pp ", smallest.stages.size(), " x tp ", strategy.tp, ", micro-batch ",
           smallest.micro_batch_text(), ", recompute ", model::name_of(strategy.recompute), ") needs ", to_text(limit + missing), ", ",
           to_text(missing), " more than ", owner, "; its largest parts",
           device.is_cpu() && smallest.world_size() > 1 ? " on one worker: " : ": ", largest_parts(smallest, memory, cost_model));
  std::vector<std::string> ideas;
  for (const Change& change : changes(job, strategy))
    for (const std::string& value : change.values) {
      const auto other = changed(job, change.key, value);
      if (!other || !some_plan_fits(*other, cluster, profile)) continue;
      ideas.push_back(text(change.key, '=', value));
      break;
    }
  if (job.cluster.kind == model::ClusterChoice::Kind::automatic || job.cluster.kind == model::ClusterChoice::Kind::file)
    if (const int nodes = nodes_that_fit(job, cluster, group, profile); nodes > 0)
      ideas.push_back(
          text(nodes * (device.is_cpu() ? 1 : cluster.groups[group].devices_per_node), device.is_cpu() ? " such hosts" : " such devices"));
  const double whole = static_cast<double>(device.memory.value) * ((limit + missing) / limit);
  ideas.push_back(text(device.is_cpu() ? "a host with " : "devices with ", rounded_up(whole)));
  std::string hint;
  for (const std::string& idea : ideas) hint += (hint.empty() ? "" : "; ") + idea;
  return {ErrorCode::resource_exhausted, what, job.parallel.where, {}, "what would fit: " + hint};
}

}  // namespace tessera::search
