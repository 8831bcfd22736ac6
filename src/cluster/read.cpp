#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/problems.hpp"
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

std::string word(const ConfigNode& node) { return node.as_string(); }
Bytes bytes(const ConfigNode& node) { return Bytes(node.as_bytes()); }

BytesPerSecond some_bandwidth(const ConfigNode& node) {
  const BytesPerSecond bandwidth = bandwidth_from(node);
  if (bandwidth.value <= 0) throw node.error("what has no bandwidth carries nothing", "a bandwidth above 0");
  return bandwidth;
}

Link read_link(const ConfigNode& node) {
  if (node.is_scalar()) return look_up(node, known_link);
  Link link;
  Section section(node, {"name", "bandwidth", "latency", "shared"});
  section.need("name", link.name, word);
  section.need("bandwidth", link.bandwidth, some_bandwidth);
  section.need("latency", link.latency, seconds_from);
  section.read("shared", link.shared, [](const ConfigNode& flag) { return flag.as_bool(); });
  section.finish();
  return link;
}

std::map<std::string, FlopsPerSecond> read_peak(const ConfigNode& node) {
  std::map<std::string, FlopsPerSecond> peak;
  node.allow_only({"fp32", "tf32", "fp16", "bf16", "fp8", "fp4"});
  for (const std::string& key : node.keys()) {
    peak[key] = rate_from(node.at(key));
    if (peak[key].value <= 0) throw node.at(key).error("a device of no speed computes nothing", "a rate above 0");
  }
  return peak;
}

Device read_device(const ConfigNode& node) {
  if (node.is_scalar()) return look_up(node, known_device);
  Device device;
  Section section(node, {"name", "vendor", "peak", "memory", "memory_bandwidth", "units", "cores"});
  section.need("name", device.name, word);
  section.need("vendor", device.vendor, word);
  section.need("peak", device.peak, read_peak);
  section.need("memory", device.memory, bytes);
  section.need("memory_bandwidth", device.memory_bandwidth, some_bandwidth);
  section.read("units", device.units, count);
  if (device.is_cpu()) section.need("cores", device.cores, count);
  section.finish();
  return device;
}

void read_rack(const ConfigNode& node, ResourceGroup& group) {
  Section section(node, {"nodes", "oversubscription"});
  section.need("nodes", group.nodes_per_rack, count);
  section.need("oversubscription", group.oversubscription, [](const ConfigNode& factor) {
    const double value = factor.as_double();
    if (!(value >= 1)) throw factor.error(text("found ", value), "a factor of 1 or more");
    return value;
  });
  section.finish();
}

void read_switch(const ConfigNode& node, ResourceGroup& group) {
  Section section(node, {"devices", "uplink"});
  section.need("devices", group.devices_per_switch, count);
  section.need("uplink", group.uplink, read_link);
  section.finish();
}

void read_speeds(const ConfigNode& node, ResourceGroup& group) {
  if (!group.device.is_cpu()) throw node.error("are of CPU hosts", "a device of its own for each kind of accelerator");
  for (const ConfigNode& speed : node.items()) {
    const double value = speed.as_double();
    if (!(value > 0 && std::isfinite(value))) throw speed.error("found " + speed.as_string(), "a number above 0");
    group.speeds.push_back(value);
  }
  if (static_cast<int>(group.speeds.size()) != group.nodes)
    throw node.error(text("has ", group.speeds.size(), " entries, and the group ", group.nodes, group.nodes == 1 ? " node" : " nodes"),
                     "one for each node: how fast it computes beside what the profile says, 0.5 for half");
}

ResourceGroup read_group(const ConfigNode& node) {
  ResourceGroup group;
  group.inside = known_link("shm");
  group.network = known_link("tcp-10g");
  Section section(node, {"name", "device", "cores", "memory", "nodes", "devices_per_node", "inside", "network", "adapters",
                         "nodes_per_domain", "rack", "switch", "speeds", "stack"});
  section.need("name", group.name, word);
  section.need("device", group.device, read_device);
  // What differs from host to host of a known class.
  section.read("cores", group.device.cores, count);
  section.read("memory", group.device.memory, bytes);
  section.read("nodes", group.nodes, count);
  if (group.device.is_cpu()) group.devices_per_node = group.device.cores;
  section.read("devices_per_node", group.devices_per_node, count);
  section.read("inside", group.inside, read_link);
  section.read("network", group.network, read_link);
  section.read("adapters", group.adapters, count);
  section.read("nodes_per_domain", group.nodes_per_domain, count);
  section.attempt([&] {
    if (const auto rack = node.find("rack")) read_rack(*rack, group);
  });
  section.attempt([&] {
    if (const auto joint = node.find("switch")) read_switch(*joint, group);
  });
  section.attempt([&] {
    if (const auto speeds = node.find("speeds")) read_speeds(*speeds, group);
  });
  section.read("stack", group.stack, word);
  section.finish();
  if (node.has("cores") && !group.device.is_cpu()) throw node.at("cores").error("only CPU devices have cores");
  if (!node.has("inside") && group.devices_per_node > 1)
    throw node.error("the link inside a node is missing", "inside: a name from `tessera cluster list`, or {name, bandwidth, latency}");
  if (!node.has("network") && group.nodes > 1)
    throw node.error("the network between nodes is missing", "network: a name from `tessera cluster list`, or {name, bandwidth, latency}");
  if (const auto stack = node.find("stack")) {
    if (group.device.is_cpu()) throw stack->error("is of accelerators", "no stack; `tessera profile` measures CPU hosts");
    group.stack_where = stack->where();
    // A file of one's own calibration, beside the cluster file.
    if (const std::filesystem::path path = group.stack; path.extension() == ".yaml" && path.is_relative())
      group.stack = (std::filesystem::path(group.stack_where.file).parent_path() / path).string();
  }
  return group;
}

std::vector<ResourceGroup> read_groups(const ConfigNode& node) {
  std::vector<ResourceGroup> groups;
  Problems problems;
  std::int64_t devices = 0;
  for (const ConfigNode& item : node.items()) {
    problems.attempt([&] {
      const ResourceGroup& read = groups.emplace_back(read_group(item));
      devices += std::int64_t{read.nodes} * read.devices_per_node;
      if (devices > kMost) throw item.error(text("makes ", devices, " devices"), text("at most ", kMost, " in all"));
    });
  }
  problems.raise();
  if (groups.empty()) throw node.error("a cluster needs at least one group");
  return groups;
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
  ClusterSpec cluster;
  cluster.name = "cluster";
  cluster.between = known_link("tcp-10g");
  Section section(node, {"name", "groups", "between"});
  section.read("name", cluster.name, word);
  section.need("groups", cluster.groups, read_groups);
  section.read("between", cluster.between, read_link);
  section.finish();
  if (!node.has("between") && cluster.groups.size() > 1)
    throw node.error("the link between groups is missing", "between: a name from `tessera cluster list`, or {name, bandwidth, latency}");
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
    if (!group.speeds.empty()) {
      std::ostringstream speeds;
      for (const double speed : group.speeds) speeds << (speeds.tellp() > 0 ? ", " : "") << std::setprecision(17) << speed;
      out += text("    speeds: [", speeds.str(), "]\n");
    }
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
