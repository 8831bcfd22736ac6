// Internal: what the files of /proc and /sys say about this host. Given as text so that tests can hold other hosts up.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"

namespace tessera::cluster {

// The CPU device of a host from its /proc/cpuinfo: class by family and model, peaks of one core from the instruction set and
// the frequency: the one that the text names, or `hertz` where that is higher. `cores`, `memory`: what this process may use.
Device cpu_from(const std::string& cpuinfo, int cores, Bytes memory, double hertz = 0);

// The frequency that this core runs at now, in some milliseconds; 0 where it cannot be measured. Virtual machines report the
// nominal one, and a core that boosts by half would seem to compute faster than it can.
double measured_hertz();

// MemTotal of /proc/meminfo, or less where a control group allows less ("max" or a number, as in memory.max; empty: none).
Bytes memory_from(const std::string& meminfo, const std::string& group_limit);

// The folders of the control groups that limit this process, innermost first, from its /proc/self/cgroup: of version 2
// ("0::/a/b") and of the version 1 hierarchy that has `controller` ("4:memory:/a/b"). A container sees only the outermost.
std::vector<std::string> group_folders(const std::string& self_cgroup, const std::string& controller);

// Cores that a control group's cpu.max ("max 100000" or "200000 100000") leaves of `cores`; at least 1.
int cores_from(int cores, const std::string& quota);

// An accelerator as its driver reports it.
struct FoundDevice {
  std::string name;  // "NVIDIA H100 80GB HBM3"
  Bytes memory;
  int nvlinks = 0;  // active ones
};
// NVIDIA devices by NVML, opened at run time; none where there is no driver.
std::vector<FoundDevice> nvidia_devices();
// The known device that a driver's name means, with the memory that was found.
std::optional<Device> recognize(const FoundDevice& found);
// Between devices of this kind in one host: NVLink of its generation where links are active, else PCIe.
Link link_inside(const FoundDevice& found, const Device& device);

// A network adapter's port that is up.
struct FoundAdapter {
  std::string name;     // "mlx5_0", "eth0"
  double gigabits = 0;  // a second, of the line
  bool rdma = false;
};
// Those under /sys/class.
std::vector<FoundAdapter> network_adapters(const std::filesystem::path& class_folder);
// What they make of the host's way to others: the fastest kind, RDMA before TCP; 10 Gbit/s Ethernet where none says its rate.
struct NetworkOfHost {
  Link link;  // of one adapter
  int adapters = 1;
};
NetworkOfHost network_of(const std::vector<FoundAdapter>& adapters);

}  // namespace tessera::cluster
