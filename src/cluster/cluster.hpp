// The machines that a job may use: devices, the links between them, and groups of identical devices.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "base/units.hpp"
#include "model/job.hpp"
#include "model/model.hpp"

namespace tessera::cluster {

// One kind of device: a GPU, or a CPU worker (a process with some cores of a host).
struct Device {
  std::string name;                            // "h100-sxm", "cpu:zen4"
  std::string vendor;                          // "nvidia", "cpu", ...
  std::map<std::string, FlopsPerSecond> peak;  // dense, by precision: "fp32", "tf32", "fp16", "bf16", "fp8", "fp4";
                                               // for a CPU: of one core
  Bytes memory;                                // for a CPU: of the whole host
  BytesPerSecond memory_bandwidth;             // for a CPU: of the whole host
  int units = 0;                               // processors of an accelerator among which a kernel's tiles are dealt; 0: not known
  int cores = 0;                               // CPU only: physical cores of the host that this process may use
  // What kind of device it is. Outside of this room, the cost model and the profile, code asks one of the questions below instead, so
  // that a new kind of device answers them here.
  bool is_cpu() const { return vendor == "cpu"; }
  bool has(model::Precision precision) const;
  FlopsPerSecond peak_of(model::Precision precision) const;  // throws not_found when the device lacks it
  // True when the ranks of a node are processes that divide its cores and its memory among them: `threads` of a rank then count. False
  // when each rank has a device, and the memory of that device, to itself.
  bool shares_host() const;
  // True when the device is an accelerator that computes in this precision, of 16 or fewer bits. Calibrations then say its times.
  bool accelerates(model::Precision precision) const;
  // True when tessera-worker computes on the device where libtorch does; plans on other devices can be simulated, not trained.
  bool trainable() const;
  // `ranks` ranks on devices of this kind, in words: "4 workers on cpu:zen4", "8 × h100-sxm".
  std::string ranks_text(int ranks) const;
};

// A path between devices: point to point bandwidth per direction and latency.
struct Link {
  std::string name;  // "nvlink4", "pcie4", "rdma-400g", "shm", "tcp-1g"
  BytesPerSecond bandwidth;
  Seconds latency;
  // True: the devices of a node share this bandwidth; false: each device has all of it. The accelerators of a node share its adapters, and
  // its link to other groups, in any case.
  bool shared = false;
};

// Identical nodes, each with the same number of identical devices.
struct ResourceGroup {
  std::string name;
  Device device;
  int nodes = 1;
  int devices_per_node = 1;  // GPUs; for CPU hosts the largest number of workers (the cores)
  Link inside;               // between devices of one node
  Link network;              // of each node to the others of the group; of one adapter when a node has several
  int adapters = 1;          // network adapters of a node
  int nodes_per_domain = 1;  // consecutive nodes that the inside link joins too (an NVL72 rack is 18 trays of 4)
  // Consecutive nodes under one leaf switch, whose way up carries 1 / oversubscription of what they could send; 0: all alike.
  int nodes_per_rack = 0;
  double oversubscription = 1;
  // Consecutive devices behind one PCIe switch, which share its way to the others; 0: none.
  int devices_per_switch = 0;
  Link uplink;
  // CPU hosts: by node, how fast each computes beside what the device and a profile say; empty: all as these say.
  std::vector<double> speeds;
  std::string stack;       // the software that trains on them, one that profile::calibration_for knows; empty: the usual one
  Where stack_where = {};  // in the cluster file

  double speed_of(int node) const { return speeds.empty() ? 1 : speeds.at(static_cast<std::size_t>(node)); }
  int domain() const { return devices_per_node * nodes_per_domain; }  // devices that the inside link joins
  // The most ranks that a plan may put on one node: one a device; where ranks share their host, 32 a core, so that plans for many
  // ranks can be tried out on few cores.
  int most_ranks_per_node() const;
};

struct ClusterSpec {
  std::string name;
  std::vector<ResourceGroup> groups;
  Link between;  // between nodes of different groups

  int device_count() const;
  // 16 hex digits that change with what plans depend on: kinds, counts, memory and links of devices. They do not change with estimates,
  // which measuring replaces, nor with how many workers a CPU host may hold.
  std::string fingerprint() const;
};

// The link that a message between two nodes takes; the group's inside link when they are one node, or in one domain.
const Link& link_between(const ClusterSpec& cluster, int group_a, int node_a, int group_b, int node_b);

// True for a group of CPUs when accelerators of the cluster accelerate `precision`: a stage on CPUs would keep all others waiting, so
// plans in that precision leave the group out.
bool is_left_out(const ClusterSpec& cluster, const ResourceGroup& group, model::Precision precision);
// The 16-bit precision, bf16 before fp16, in which all accelerators of the cluster compute; empty without accelerators.
std::optional<model::Precision> fast_precision(const ClusterSpec& cluster);
// The kinds of devices that are trainable(), in words, for messages.
inline constexpr const char* kTrainableKinds = "CPUs and NVIDIA GPUs";

// Accelerators and CPU classes known without measurement. Throws not_found with the nearest name.
const std::vector<Device>& known_devices();
Device known_device(const std::string& name);
const std::vector<Link>& known_links();
Link known_link(const std::string& name);

// This host: cores, memory and caches by hwloc and /proc, NVIDIA devices by NVML (opened at run time). CPU peak and
// bandwidth are estimates from the instruction set until measured.
ClusterSpec discover_host();

// The CPUs of several hosts, each as discover_host found them, in this order: consecutive hosts of one kind are the nodes of one group,
// with what all of them have.
ClusterSpec joined(const std::vector<ClusterSpec>& hosts);

// The speed of each host (ResourceGroup::speeds), group after group.
std::vector<double> speeds_of_hosts(const ClusterSpec& cluster);
// The cluster with these; `speeds` has one for each host.
ClusterSpec with_speeds(ClusterSpec cluster, const std::vector<double>& speeds);

// A cluster file. Throws invalid_config with file, line and the nearest valid name.
ClusterSpec read_cluster(const ConfigNode& node);
ClusterSpec load_cluster(const std::filesystem::path& path);
// read_cluster reads it back as exactly the same cluster.
std::string to_yaml(const ClusterSpec& cluster);

// The cluster after what-ifs: "cluster.KEY=VALUE" with the keys of a cluster file ("cluster.groups.0.nodes=4",
// "cluster.groups.gpu.memory=40 GiB", "cluster.between=tcp-25g"). A key of a group alone is set in every group ("cluster.nodes=4"),
// "cluster.link" in every link between nodes. A value "x2" or "x0.5" multiplies what is there; of a link, its bandwidth. Links that change
// are renamed, so that times measured on them are not taken. Throws invalid_config naming the setting and the nearest valid key.
ClusterSpec with_overrides(const ClusterSpec& cluster, const std::vector<std::string>& settings);
// Whether a setting is such a what-if; "cluster.local..." and "cluster.lab..." are keys of the train.yaml.
bool is_cluster_override(const std::string& setting);

// What `cluster:` of a train.yaml means on this host: discovery, a file, this host with so many workers, or the lab's
// emulated hosts. Throws invalid_config with the line of `cluster`.
ClusterSpec resolve(const model::ClusterChoice& choice);

}  // namespace tessera::cluster
