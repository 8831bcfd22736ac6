// How long exchanges between the ranks of a group take on the links that the group crosses, when every group of the cluster
// exchanges at the same time: the groups on a node share its adapters.
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

class Exchanges {
 public:
  // Ranks stand on devices in the order of the cluster; or, with `dealt_over` n > 1, n consecutive ones on n nodes (domains of the
  // inside link), the next n on the same nodes again, until those are full. The ranks of a process group are then as many on each of its
  // nodes.
  Exchanges(const cluster::ResourceGroup& group, const Calibration& calibration, int dealt_over = 1);

  // Seconds of a collective over a buffer of `bytes`: what an all-gather ends with and a reduce-scatter begins with. By rings
  // (Patarasuk, Yuan 2009) that enter and leave each node once. All-reduces wait for 2 log2(ranks) steps of a tree; all-gathers and
  // reduce-scatters for every rank of the ring, as NCCL has no trees for them (src/graph/tuning.cc there).
  double collective(Collective operation, double bytes, ProcessGroup group) const;
  // Every rank holds `bytes` of copies, `copies` of each of its items, for ranks drawn evenly; an item goes once to each node that
  // wants it (DeepSeek-AI 2024, section 3.2.2).
  double all_to_all(double bytes, int copies, ProcessGroup group) const;
  // A message of every rank to the one `stride` devices further.
  double message(double bytes, int stride) const;
  // The same between pipeline stages of `width` devices each, which stand side by side on the whole group: the slowest of these
  // messages. Where a domain holds several stages, the last of them sends through the domain's adapters.
  double stage_message(double bytes, int width) const;
  // A message of every rank of a ring to the next one, in all rings at once: the slowest hop of the ring. A ring over several domains
  // leaves each of them once, and the rings of a domain share its adapters; where ranks are dealt over domains, every hop leaves one.
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
