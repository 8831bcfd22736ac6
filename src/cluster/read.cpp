#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cluster/cluster.hpp"
#include "cluster/quantity.hpp"

namespace tessera::cluster {
namespace {

// Of nodes, of cores, and of devices in all.
constexpr std::int64_t kMost = 1 << 20;

int count(const ConfigNode& node) { return static_cast<int>(node.as_int_between(1, kMost)); }

// A known name's error gains the file and line.
template <typename Lookup>
auto look_up(const ConfigNode& node, const Lookup& lookup) {
  try {
    return lookup(node.as_string());
  } catch (const Error& problem) {
    if (problem.code() != ErrorCode::not_found) throw;
    throw node.error(problem.message(), problem.expected(), problem.hint());
  }
}

Link read_link(const ConfigNode& node) {
  if (node.is_scalar()) return look_up(node, known_link);
  node.allow_only({"name", "bandwidth", "latency", "shared"});
  Link link;
  link.name = node.at("name").as_string();
  link.bandwidth = bandwidth_from(node.at("bandwidth"));
  if (link.bandwidth.value <= 0) throw node.at("bandwidth").error("a link of no bandwidth carries nothing", "a bandwidth above 0");
  link.latency = seconds_from(node.at("latency"));
  link.shared = node.get("shared", false);
  return link;
}

Device read_device(const ConfigNode& node) {
  if (node.is_scalar()) return look_up(node, known_device);
  node.allow_only({"name", "vendor", "peak", "memory", "memory_bandwidth", "units", "cores"});
  Device device;
  device.name = node.at("name").as_string();
  device.vendor = node.at("vendor").as_string();
  const ConfigNode peak = node.at("peak");
  peak.allow_only({"fp32", "tf32", "fp16", "bf16", "fp8", "fp4"});
  for (const std::string& key : peak.keys()) {
    device.peak[key] = rate_from(peak.at(key));
    if (device.peak[key].value <= 0) throw peak.at(key).error("a device of no speed computes nothing", "a rate above 0");
  }
  device.memory = Bytes(node.at("memory").as_bytes());
  device.memory_bandwidth = bandwidth_from(node.at("memory_bandwidth"));
  if (device.memory_bandwidth.value <= 0)
    throw node.at("memory_bandwidth").error("memory of no bandwidth holds nothing", "a bandwidth above 0");
  if (device.is_cpu()) device.cores = count(node.at("cores"));
  if (const auto units = node.find("units")) device.units = count(*units);
  return device;
}

ResourceGroup read_group(const ConfigNode& node) {
  node.allow_only({"name", "device", "cores", "memory", "nodes", "devices_per_node", "inside", "network", "adapters", "nodes_per_domain",
                   "rack", "switch", "stack"});
  ResourceGroup group;
  group.name = node.at("name").as_string();
  group.device = read_device(node.at("device"));
  // What differs from host to host of a known class.
  if (const auto cores = node.find("cores")) {
    if (!group.device.is_cpu()) throw cores->error("only CPU devices have cores");
    group.device.cores = count(*cores);
  }
  if (const auto memory = node.find("memory")) group.device.memory = Bytes(memory->as_bytes());
  if (const auto nodes = node.find("nodes")) group.nodes = count(*nodes);
  if (const auto devices = node.find("devices_per_node")) {
    group.devices_per_node = count(*devices);
  } else if (group.device.is_cpu()) {
    group.devices_per_node = group.device.cores;
  }
  const auto inside = node.find("inside");
  if (!inside && group.devices_per_node > 1)
    throw node.error("the link inside a node is missing", "inside: a name from `tessera cluster list`, or {name, bandwidth, latency}");
  group.inside = inside ? read_link(*inside) : known_link("shm");
  const auto network = node.find("network");
  if (!network && group.nodes > 1)
    throw node.error("the network between nodes is missing", "network: a name from `tessera cluster list`, or {name, bandwidth, latency}");
  group.network = network ? read_link(*network) : known_link("tcp-10g");
  if (const auto adapters = node.find("adapters")) group.adapters = count(*adapters);
  if (const auto nodes = node.find("nodes_per_domain")) group.nodes_per_domain = count(*nodes);
  if (const auto rack = node.find("rack")) {
    rack->allow_only({"nodes", "oversubscription"});
    group.nodes_per_rack = count(rack->at("nodes"));
    group.oversubscription = rack->at("oversubscription").as_double();
    if (!(group.oversubscription >= 1))
      throw rack->at("oversubscription").error(text("found ", group.oversubscription), "a factor of 1 or more");
  }
  if (const auto joint = node.find("switch")) {
    joint->allow_only({"devices", "uplink"});
    group.devices_per_switch = count(joint->at("devices"));
    group.uplink = read_link(joint->at("uplink"));
  }
  if (const auto stack = node.find("stack")) {
    if (group.device.is_cpu()) throw stack->error("is of accelerators", "no stack; `tessera profile` measures CPU hosts");
    group.stack = stack->as_string();
    group.stack_where = stack->where();
  }
  return group;
}

// JSON's strings are YAML's double-quoted ones.
std::string yaml_string(const std::string& value) {
  return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string yaml_of(const Link& link) {
  return text("{name: ", yaml_string(link.name), ", bandwidth: ", written(link.bandwidth), ", latency: ", written(link.latency),
              ", shared: ", link.shared ? "true" : "false", "}");
}

}  // namespace

ClusterSpec read_cluster(const ConfigNode& node) {
  node.allow_only({"name", "groups", "between"});
  ClusterSpec cluster;
  cluster.name = node.get("name", std::string("cluster"));
  std::int64_t devices = 0;
  for (const ConfigNode& group : node.at("groups").items()) {
    const ResourceGroup& read = cluster.groups.emplace_back(read_group(group));
    devices += std::int64_t{read.nodes} * read.devices_per_node;
    if (devices > kMost) throw group.error(text("makes ", devices, " devices"), text("at most ", kMost, " in all"));
  }
  if (cluster.groups.empty()) throw node.at("groups").error("a cluster needs at least one group");
  const auto between = node.find("between");
  if (!between && cluster.groups.size() > 1)
    throw node.error("the link between groups is missing", "between: a name from `tessera cluster list`, or {name, bandwidth, latency}");
  cluster.between = between ? read_link(*between) : known_link("tcp-10g");
  return cluster;
}

ClusterSpec load_cluster(const std::filesystem::path& path) { return read_cluster(ConfigNode::load(path)); }

std::string to_yaml(const ClusterSpec& cluster) {
  std::string out = text("name: ", yaml_string(cluster.name), "\ngroups:\n");
  for (const ResourceGroup& group : cluster.groups) {
    const Device& device = group.device;
    out += text("  - name: ", yaml_string(group.name), "\n    device:\n      name: ", yaml_string(device.name),
                "\n      vendor: ", yaml_string(device.vendor), "\n      peak: {");
    std::string separator;
    for (const auto& [precision, rate] : device.peak) {
      out += text(separator, precision, ": ", written(rate));
      separator = ", ";
    }
    out += text("}", device.is_cpu() ? "   # of one core" : "", "\n      memory: ", written(device.memory),
                "\n      memory_bandwidth: ", written(device.memory_bandwidth), "\n");
    if (device.units > 0) out += text("      units: ", device.units, "\n");
    if (device.is_cpu()) out += text("      cores: ", device.cores, "\n");
    out += text("    nodes: ", group.nodes, "\n    devices_per_node: ", group.devices_per_node,
                device.is_cpu() ? "   # worker processes at most" : "", "\n    inside: ", yaml_of(group.inside),
                "\n    network: ", yaml_of(group.network), "\n");
    if (group.adapters > 1) out += text("    adapters: ", group.adapters, "\n");
    if (group.nodes_per_domain > 1) out += text("    nodes_per_domain: ", group.nodes_per_domain, "\n");
    if (group.nodes_per_rack > 0) {
      std::ostringstream factor;
      factor << std::setprecision(17) << group.oversubscription;
      out += text("    rack: {nodes: ", group.nodes_per_rack, ", oversubscription: ", factor.str(), "}\n");
    }
    if (group.devices_per_switch > 0)
      out += text("    switch: {devices: ", group.devices_per_switch, ", uplink: ", yaml_of(group.uplink), "}\n");
    if (!group.stack.empty()) out += text("    stack: ", yaml_string(group.stack), "\n");
  }
  return out + text("between: ", yaml_of(cluster.between), "\n");
}

}  // namespace tessera::cluster
