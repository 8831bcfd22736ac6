#include <unistd.h>
#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/log.hpp"
#include "cluster/host.hpp"
#include "cluster/processors.hpp"

namespace tessera::cluster {
namespace {

// Empty when there is no such file: each of them is missing on some kernel.
std::string content(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

int usable_cores() {
  const auto found = static_cast<int>(usable_processors().size());
  return found > 0 ? found : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}
// What control groups of either version leave of the host.
int allowed_cores() {
  int cores = usable_cores();
  for (const std::string& folder : group_folders(content("/proc/self/cgroup"), "cpu")) {
    cores = cores_from(cores, content(folder + "/cpu.max"));
    cores = cores_from(cores, content(folder + "/cpu.cfs_quota_us") + " " + content(folder + "/cpu.cfs_period_us"));
  }
  return cores;
}

Bytes allowed_memory() {
  const std::string meminfo = content("/proc/meminfo");
  Bytes memory = memory_from(meminfo, {});
  for (const std::string& folder : group_folders(content("/proc/self/cgroup"), "memory"))
    for (const char* file : {"/memory.max", "/memory.limit_in_bytes"})
      memory = std::min(memory, memory_from(meminfo, content(folder + file)));
  return memory;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "this-host";
}

// Groups of equal devices, in the order in which they were found.
std::vector<ResourceGroup> accelerator_groups() {
  std::vector<ResourceGroup> groups;
  for (const FoundDevice& found : nvidia_devices()) {
    const auto device = recognize(found);
    if (!device) {
      log::warning(text("the accelerator '", found.name, "' is not known and is left out; describe it in a cluster.yaml"));
      continue;
    }
    if (!groups.empty() && groups.back().device.name == device->name) {
      ++groups.back().devices_per_node;
      continue;
    }
    ResourceGroup group;
    group.name = device->name;
    group.device = *device;
    group.inside = link_inside(found, *device);
    groups.push_back(group);
  }
  return groups;
}

}  // namespace

ClusterSpec discover_host() {
  ClusterSpec cluster;
  cluster.name = host_name();
  ResourceGroup cpu;
  cpu.name = "cpu";
  const int cores = allowed_cores();
  cpu.device = cpu_from(content("/proc/cpuinfo"), cores, allowed_memory(), measured_hertz());
  cpu.devices_per_node = cores;
  cpu.inside = known_link("shm");
  cluster.groups.push_back(std::move(cpu));
  for (ResourceGroup& group : accelerator_groups()) cluster.groups.push_back(std::move(group));
  const NetworkOfHost network = network_of(network_adapters("/sys/class"));
  for (ResourceGroup& group : cluster.groups) {
    group.network = network.link;
    group.adapters = network.adapters;
  }
  cluster.between = known_link("pcie4");
  return cluster;
}

}  // namespace tessera::cluster
