// How long collectives and messages take on the links that they cross. All process groups of a kind communicate at the same time, so those
// on a node share its adapters: with tp 8 on nodes of 8 devices, each of a node's 8 data-parallel groups gets an eighth of its network.
#pragma once

#include "cluster/cluster.hpp"
#include "profile/calibration.hpp"

namespace tessera::profile {

enum class Collective { all_reduce, all_gather, reduce_scatter };

// The ranks that communicate with each other: `ranks` of them, each `stride` after the one before it. Of 8 ranks with tp 2, tensor
// parallelism forms the groups {2, 1}: 0 1, 2 3, 4 5, 6 7; data parallelism {4, 2}: 0 2 4 6, 1 3 5 7.
struct ProcessGroup {
  int ranks = 1;
  int stride = 1;
};

// Times on one group of devices under one calibration. Thread-safe: it does not change.
class Exchanges {
 public:
  // Ranks stand on devices in the order of the cluster. With `dealt_over` n > 1, n consecutive ranks stand on n domains (of the inside
  // link), the next n on the same domains again, until these are full; a process group then has as many ranks on each of its domains.
  Exchanges(const cluster::ResourceGroup& group, const Calibration& calibration, int dealt_over = 1);

  // Seconds of a collective. `bytes` is the whole buffer: what an all-gather ends with and a reduce-scatter begins with. By rings
  // (Patarasuk, Yuan 2009) that enter and leave each node once. The latency is that of 2 log2(ranks) steps of a tree for an all-reduce,
  // and of a step for every rank of the ring for the others, because NCCL has no trees for them (src/graph/tuning.cc there).
  double collective(Collective operation, double bytes, ProcessGroup group) const;
  // Seconds of an all-to-all that sends each item to `copies` ranks, drawn evenly; every rank holds `bytes` of these copies. Only one copy
  // of an item goes to each node that wants it (DeepSeek-AI 2024, section 3.2.2).
  double all_to_all(double bytes, int copies, ProcessGroup group) const;
  // Seconds in which every rank sends a message of `bytes` to the rank `stride` devices further.
  double message(double bytes, int stride) const;
  // Seconds in which every rank of each pipeline stage sends a message to the next stage, where stages of `width` devices stand side by
  // side on the whole group. Where a domain holds several stages, the last of them sends through the domain's adapters; it is the slowest.
  double stage_message(double bytes, int width) const;
  // Seconds in which every rank of a ring sends a message to the next one, in all rings at once: those of the slowest hop. A ring over
  // several domains leaves each of them once, and the rings of a domain share its adapters; where ranks are dealt over domains, every hop
  // leaves its domain.
  double ring_step(double bytes, ProcessGroup group) const;
  // How many of a process group's ranks stand in one domain.
  int ranks_per_domain(ProcessGroup group) const;

 private:
  double device_share() const { return network_ / domain_; }  // of the adapters, when all devices use them
  bool leaves_rack(ProcessGroup group) const;

  Calibration calibration_;
  int dealt_over_ = 1;
  int domain_ = 1;
  int domains_ = 1;
  double inside_ = 0;          // bytes per second of a device
  double network_ = 0;         // bytes per second of all adapters of a domain
  double inside_latency_ = 0;  // seconds of a step: the calibration's, or the link's where that is longer
  double network_latency_ = 0;
  double rack_ = 1;  // factor on messages that leave a rack
  int rack_devices_ = 0;
};

}  // namespace tessera::profile
