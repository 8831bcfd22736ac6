#include <algorithm>
#include <cmath>

#include "cluster/cluster.hpp"

namespace tessera::cluster {
namespace {

// The CPU group alone: `local` and `lab` speak of worker processes.
ClusterSpec cpu_host() {
  ClusterSpec cluster = discover_host();
  std::erase_if(cluster.groups, [](const ResourceGroup& group) { return !group.device.is_cpu(); });
  return cluster;
}

ClusterSpec local(const model::ClusterChoice& choice) {
  ClusterSpec cluster = cpu_host();
  ResourceGroup& group = cluster.groups.front();
  const int most = group.most_ranks_per_node();
  if (choice.devices > most)
    throw Error(ErrorCode::invalid_config, text("cluster.local.devices: ", choice.devices, " workers on ", group.device.cores, " cores"),
                choice.where, text("at most ", most), text("nearest: ", most));
  group.devices_per_node = choice.devices;
  return cluster;
}

// Each emulated host has a share of this machine's cores and memory and a link of its own.
ClusterSpec lab(const model::ClusterChoice& choice) {
  ClusterSpec cluster = cpu_host();
  ResourceGroup& group = cluster.groups.front();
  const double share = choice.cpu > 0 ? choice.cpu : static_cast<double>(group.device.cores) / choice.devices;
  group.name = "lab";
  group.nodes = choice.devices;
  group.devices_per_node = 1;
  const int cores = std::max(1, static_cast<int>(std::ceil(share)));
  for (auto& [precision, rate] : group.device.peak) rate = FlopsPerSecond(rate.value * share / cores);
  group.device.memory_bandwidth =
      BytesPerSecond(std::max(1.0, group.device.memory_bandwidth.value * std::min(1.0, share / group.device.cores)));
  group.device.memory = Bytes(group.device.memory.value / choice.devices);
  group.device.cores = cores;
  const double gbit = choice.gbit > 0 ? choice.gbit : 1;
  // What TCP's and IP's headers leave of an Ethernet frame.
  constexpr double kPayload = 0.94;
  group.network = {text("tcp-", gbit, "g"), BytesPerSecond(gbit * 1.25e8 * kPayload), Seconds(60e-6), true};
  cluster.name = "lab";
  cluster.between = group.network;
  return cluster;
}

}  // namespace

ClusterSpec resolve(const model::ClusterChoice& choice) {
  switch (choice.kind) {
    case model::ClusterChoice::Kind::automatic: return discover_host();
    case model::ClusterChoice::Kind::file: return load_cluster(choice.file);
    case model::ClusterChoice::Kind::local: return local(choice);
    case model::ClusterChoice::Kind::lab: return lab(choice);
  }
  throw Error(ErrorCode::internal, "a cluster choice of no kind");
}

}  // namespace tessera::cluster
