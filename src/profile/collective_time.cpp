#include <algorithm>
#include <cmath>

#include "profile/profile.hpp"

namespace tessera::profile {
namespace {

// Per rank of a ring among `ranks`: steps, and the share of the buffer that each step moves (Patarasuk, Yuan 2009).
struct Ring {
  double steps = 1;
  double share = 1;
};

Ring ring_of(const std::string& operation, int ranks) {
  const double n = ranks;
  if (operation == "all_reduce") return {2 * (n - 1), 1 / n};
  if (operation == "reduce_scatter" || operation == "all_gather") return {n - 1, 1 / n};
  if (operation == "send") return {1, 1};
  throw Error(ErrorCode::internal, "no communication is called " + operation);
}

// What the wire carries of each byte of the buffer, one rank's or (behind a shared link) all ranks' together.
double moved(const Ring& ring, int ranks, const cluster::Link& link, bool send) {
  return ring.steps * ring.share * (link.shared && !send ? ranks : 1);
}

Seconds estimate(const std::string& operation, double bytes, int ranks, const cluster::Link& link) {
  const Ring ring = ring_of(operation, ranks);
  const double wire = bytes * moved(ring, ranks, link, operation == "send") / link.bandwidth.value;
  const double by_ring = ring.steps * link.latency.value + wire;
  if (operation != "all_reduce") return Seconds(by_ring);
  // Small buffers go up and down a binary tree.
  const double levels = std::ceil(std::log2(static_cast<double>(ranks)));
  const double by_tree = 2 * levels * (link.latency.value + bytes * (link.shared ? ranks / 2.0 : 1.0) / link.bandwidth.value);
  return Seconds(std::min(by_ring, by_tree));
}

}  // namespace

Seconds collective_time(const Profile& profile, const std::string& operation, Bytes bytes, int ranks, const cluster::Link& link) {
  if (ranks < 2) return Seconds(0);
  const double size = static_cast<double>(bytes.value);
  const CommSample* best = nullptr;
  for (const CommSample& sample : profile.communication) {
    if (sample.operation != operation || sample.link != link.name) continue;
    if (best == nullptr || std::abs(sample.ranks - ranks) < std::abs(best->ranks - ranks)) best = &sample;
  }
  if (best == nullptr) return estimate(operation, size, ranks, link);
  const double measured = best->latency.value + size / best->bandwidth.value;
  // A message concerns two ranks, however many were there when it was measured.
  if (best->ranks == ranks || operation == "send") return Seconds(measured);
  return Seconds(measured * estimate(operation, size, ranks, link).value / estimate(operation, size, best->ranks, link).value);
}

}  // namespace tessera::profile
