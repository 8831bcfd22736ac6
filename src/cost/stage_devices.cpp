// What stages stand on: whose times, whose memory.
#include <algorithm>

#include "cost/cost.hpp"
#include "cost/cost_model.hpp"
#include "plan/stage_places.hpp"

namespace tessera::cost {
namespace {

// Of a process with its libraries and kernels loaded, and the allocator's fragments.
constexpr double kProcessBytes = 900.0 * (1 << 20);

}  // namespace

bool CostModel::calibrated(const cluster::Device& device, model::Precision precision) {
  return precision != model::Precision::f32 && !device.is_cpu();
}

bool plays_exchanges(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  return std::any_of(plan.ranks.begin(), plan.ranks.end(), [&](const plan::RankPlace& place) {
    return !CostModel::calibrated(cluster.groups[place.group].device, plan.precision);
  });
}

const cluster::ResourceGroup& CostModel::cluster_group(int devices, std::size_t part) const {
  return cluster_.groups[stand(devices).devices.parts[part].group];
}

plan::Worker CostModel::worker(const StageDevices::Part& part) const {
  const cluster::ResourceGroup& group = cluster_.groups[part.group];
  if (!group.device.is_cpu()) return {part.group};
  return {part.group, part.threads > 0 ? part.threads : std::max(1, group.device.cores), std::max(1, part.neighbours),
          part.speed > 0 ? part.speed : group.speed_of(0)};
}

int CostModel::devices_of(const plan::Plan& plan, const plan::Stage& stage) { return devices_of(plan, stage, workers_of(plan, cluster_)); }

std::vector<int> CostModel::devices_of(const plan::Plan& plan) {
  const std::vector<plan::Worker> workers = workers_of(plan, cluster_);
  std::vector<int> out;
  for (const plan::Stage& stage : plan.stages) out.push_back(devices_of(plan, stage, workers));
  return out;
}

int CostModel::devices_of(const plan::Plan& plan, const plan::Stage& stage, const std::vector<plan::Worker>& workers) {
  StageDevices out;
  std::size_t rank = 0;
  for (const plan::Share& share : plan.shares_of(stage)) {
    const std::size_t first = rank;
    for (int i = 0; i < share.ranks; ++i, ++rank) {
      const plan::Worker& on = workers[stage.ranks[rank]];
      if (rank == first || worker(out.parts.back()) != on) out.parts.push_back({on.group, 0, 0, on.threads, on.neighbours, on.speed});
      ++out.parts.back().ranks;
      out.parts.back().samples = share.samples * out.parts.back().ranks / share.ranks;
    }
  }
  // Parts need not hold whole replicas, where all of these have the same.
  if (stage.shares.empty() && !calibrated(cluster_.groups[out.parts.front().group].device, precision_))
    for (StageDevices::Part& part : out.parts) part.samples = 0;
  if (out.parts.size() > 1) return add(out);
  out.parts.front().samples = 0;
  const cluster::ResourceGroup& group = cluster_.groups[out.parts.front().group];
  if (!calibrated(group.device, precision_)) {
    out.parts.front().ranks = 0;
    return add(out);
  }
  out.dealt_over = dealt_over(plan, stage, group);
  if (out.dealt_over > 0) return add(out);
  const plan::DomainShare share = domain_share(plan, stage, group);
  out.per_node = share.devices;
  out.first_domain = share.first;
  if (const int together = plan::together_everywhere(plan, stage, group); out.per_node == 0 && together > 0) out.per_node = together;
  return add(out);
}

double CostModel::samples_per_rank(int devices, int width, std::int64_t samples, int only) const {
  const std::vector<StageDevices::Part>& parts = stand(devices).devices.parts;
  if (parts.size() == 1) return static_cast<double>(samples) / width;
  if (only != kAllParts) return static_cast<double>(parts[only].samples) / parts[only].ranks;
  return most(devices, [&](std::size_t part) {
    return static_cast<double>(parts[part].samples) / parts[part].ranks * (memory_limit(devices) / memory_limit(devices, part));
  });
}

std::int64_t CostModel::micro_batch(int devices, int part, const plan::Strategy& s, std::int64_t samples) const {
  const std::vector<StageDevices::Part>& parts = stand(devices).devices.parts;
  const StageDevices::Part& on = parts[part];
  return parts.size() == 1 || on.samples == 0 ? samples / s.dp : on.samples / std::max(1, on.ranks / (s.cp * s.tp));
}

int CostModel::domain(int devices) const {
  return -most(devices, [&](std::size_t part) {
    const StageDevices& of = stand(devices).devices;
    return -(of.per_node > 0 ? of.per_node : cluster_.groups[of.parts[part].group].domain());
  });
}
double CostModel::process_bytes(int devices, int only) const {
  const auto bytes = [&](std::size_t part) { return cluster_group(devices, part).device.is_cpu() ? worker_bytes() : kProcessBytes; };
  if (only != kAllParts) return bytes(only);
  return most(devices, [&](std::size_t part) { return bytes(part) * memory_limit(devices) / memory_limit(devices, part); });
}
double CostModel::memory_limit(int devices, std::size_t part) const {
  const int neighbours = worker(stand(devices).devices.parts[part]).neighbours;
  return static_cast<double>(cost::memory_limit(cluster_group(devices, part).device).value) / neighbours;
}
bool CostModel::plays_exchanges(int devices) const {
  const std::vector<StageDevices::Part>& parts = stand(devices).devices.parts;
  return std::any_of(parts.begin(), parts.end(),
                     [&](const StageDevices::Part& part) { return !calibrated(cluster_.groups[part.group].device, precision_); });
}

}  // namespace tessera::cost
