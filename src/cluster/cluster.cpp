#include "cluster/cluster.hpp"

#include <algorithm>
#include <cmath>

#include "base/hash.hpp"

namespace tessera::cluster {

bool Device::has(model::Precision precision) const { return peak.contains(model::name_of(precision)); }

FlopsPerSecond Device::peak_of(model::Precision precision) const {
  const auto found = peak.find(model::name_of(precision));
  if (found != peak.end()) return found->second;
  std::string known;
  for (const auto& [key, rate] : peak) known += (known.empty() ? "" : ", ") + key;
  throw Error(ErrorCode::not_found, text("device ", name, " cannot compute in ", model::name_of(precision)), {}, text("one of: ", known));
}

bool Device::shares_host() const { return is_cpu(); }

bool Device::accelerates(model::Precision precision) const { return !is_cpu() && precision != model::Precision::f32 && has(precision); }

bool Device::trainable() const { return is_cpu() || vendor == "nvidia"; }

std::string Device::ranks_text(int ranks) const {
  return is_cpu() ? text(ranks, ranks == 1 ? " worker on " : " workers on ", name) : text(ranks, " × ", name);
}

int ResourceGroup::most_ranks_per_node() const {
  // More workers than this per core only wait for each other.
  constexpr int kMostPerCore = 32;
  return device.shares_host() ? std::max(devices_per_node, kMostPerCore * device.cores) : devices_per_node;
}

int ClusterSpec::device_count() const {
  int total = 0;
  for (const ResourceGroup& group : groups) total += group.nodes * group.devices_per_node;
  return total;
}

std::string ClusterSpec::fingerprint() const {
  const auto describe = [](const Link& link) {
    return text(link.name, ',', std::llround(link.bandwidth.value), link.shared ? ",shared" : "");
  };
  std::string all;
  for (const ResourceGroup& group : groups) {
    // A host reports some pages more or less after each boot.
    const std::int64_t gibibytes = (group.device.memory.value + (std::int64_t{1} << 29)) >> 30;
    all += text(group.device.name, ' ', gibibytes, ' ', group.device.cores, ' ', group.nodes, ' ',
                group.device.is_cpu() ? 0 : group.devices_per_node, ' ', describe(group.inside), ' ', describe(group.network));
    if (group.adapters > 1) all += text(" x", group.adapters);
    if (group.nodes_per_domain > 1) all += text(" domain ", group.nodes_per_domain);
    if (group.nodes_per_rack > 0) all += text(" rack ", group.nodes_per_rack, '/', group.oversubscription);
    if (group.devices_per_switch > 0) all += text(" switch ", group.devices_per_switch, ' ', describe(group.uplink));
    if (!group.stack.empty()) all += text(" stack ", group.stack);
    all += '\n';
  }
  if (groups.size() > 1) all += describe(between);
  return hash128_hex(all).substr(0, 16);
}

const Link& link_between(const ClusterSpec& cluster, int group_a, int node_a, int group_b, int node_b) {
  if (group_a != group_b) return cluster.between;
  const ResourceGroup& group = cluster.groups.at(group_a);
  return node_a / group.nodes_per_domain == node_b / group.nodes_per_domain ? group.inside : group.network;
}

bool is_left_out(const ClusterSpec& cluster, const ResourceGroup& group, model::Precision precision) {
  return group.device.is_cpu() && std::any_of(cluster.groups.begin(), cluster.groups.end(),
                                              [&](const ResourceGroup& other) { return other.device.accelerates(precision); });
}

std::optional<model::Precision> fast_precision(const ClusterSpec& cluster) {
  for (const model::Precision precision : {model::Precision::bf16, model::Precision::f16}) {
    int accelerators = 0;
    int computing = 0;
    for (const ResourceGroup& group : cluster.groups) {
      accelerators += !group.device.is_cpu();
      computing += group.device.accelerates(precision);
    }
    if (accelerators > 0 && computing == accelerators) return precision;
  }
  return {};
}

std::vector<double> speeds_of_hosts(const ClusterSpec& cluster) {
  std::vector<double> out;
  for (const ResourceGroup& group : cluster.groups)
    for (int node = 0; node < group.nodes; ++node) out.push_back(group.speed_of(node));
  return out;
}

ClusterSpec with_speeds(ClusterSpec cluster, const std::vector<double>& speeds) {
  std::size_t host = 0;
  for (ResourceGroup& group : cluster.groups) {
    group.speeds.clear();
    for (int node = 0; node < group.nodes; ++node) group.speeds.push_back(speeds.at(host++));
  }
  ensure(host == speeds.size(), "a speed for each host");
  return cluster;
}

}  // namespace tessera::cluster
