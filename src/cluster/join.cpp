#include <algorithm>
#include <cmath>

#include "cluster/cluster.hpp"

namespace tessera::cluster {
namespace {

// Hosts of one kind differ by what their kernels keep for themselves.
constexpr double kSameMemory = 0.05;

const ResourceGroup& cpus_of(const ClusterSpec& host) {
  const auto found = std::find_if(host.groups.begin(), host.groups.end(), [](const ResourceGroup& group) { return group.device.is_cpu(); });
  if (found == host.groups.end()) throw Error(ErrorCode::invalid_config, "host " + host.name + " has no CPUs");
  return *found;
}

bool alike(const ResourceGroup& a, const ResourceGroup& b) {
  const double memory =
      a.device.memory.value > 0 ? static_cast<double>(b.device.memory.value) / static_cast<double>(a.device.memory.value) : 0;
  return a.device.name == b.device.name && a.device.cores == b.device.cores && a.devices_per_node == b.devices_per_node &&
         a.network.name == b.network.name && std::abs(memory - 1) < kSameMemory;
}

// What both have.
void take_in(ResourceGroup& group, const ResourceGroup& host) {
  ++group.nodes;
  group.device.memory = std::min(group.device.memory, host.device.memory);
  group.device.memory_bandwidth = std::min(group.device.memory_bandwidth, host.device.memory_bandwidth);
  for (auto& [precision, rate] : group.device.peak)
    if (const auto other = host.device.peak.find(precision); other != host.device.peak.end()) rate = std::min(rate, other->second);
}

}  // namespace

ClusterSpec joined(const std::vector<ClusterSpec>& hosts) {
  ClusterSpec cluster;
  cluster.name = text(hosts.size(), hosts.size() == 1 ? "-host" : "-hosts");
  for (const ClusterSpec& host : hosts) {
    const ResourceGroup& cpus = cpus_of(host);
    if (!cluster.groups.empty() && alike(cluster.groups.back(), cpus)) {
      take_in(cluster.groups.back(), cpus);
      continue;
    }
    cluster.groups.push_back(cpus);
    if (cluster.groups.size() > 1) cluster.groups.back().name += text("-", cluster.groups.size());
  }
  cluster.between = cluster.groups.front().network;
  for (const ResourceGroup& group : cluster.groups)
    if (group.network.bandwidth < cluster.between.bandwidth) cluster.between = group.network;
  return cluster;
}

}  // namespace tessera::cluster
