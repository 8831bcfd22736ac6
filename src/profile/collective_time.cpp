#include <algorithm>
#include <cmath>

#include "profile/profile.hpp"

namespace tessera::profile {
namespace {

// Per rank of a ring among `ranks`: steps, and the share of the buffer that each step moves (Patarasuk, Yuan 2009). In an all-to-all each
// rank sends its share to one other in each step.
struct Ring {
  double steps = 1;
  double share = 1;
};

Ring ring_of(const std::string& operation, int ranks) {
  const double n = ranks;
  if (operation == "all_reduce") return {2 * (n - 1), 1 / n};
  if (operation == "reduce_scatter" || operation == "all_gather" || operation == "all_to_all") return {n - 1, 1 / n};
  if (operation == "send") return {1, 1};
  throw Error(ErrorCode::internal, "no communication is called " + operation);
}

Seconds estimate(const std::string& operation, double bytes, int ranks, const cluster::Link& link, Medium medium) {
  const Ring ring = ring_of(operation, ranks);
  const bool together = link.shared && medium == Medium::bus && operation != "send";
  const double wire = bytes * ring.steps * ring.share * (together ? ranks : 1) / link.bandwidth.value;
  const double by_ring = ring.steps * link.latency.value + wire;
  if (operation != "all_reduce") return Seconds(by_ring);
  // Small buffers go up and down a binary tree.
  const double levels = std::ceil(std::log2(static_cast<double>(ranks)));
  const double by_tree = 2 * levels * (link.latency.value + bytes * (together ? ranks / 2.0 : 1.0) / link.bandwidth.value);
  return Seconds(std::min(by_ring, by_tree));
}

// Of this operation on this link, among the most similar number of ranks.
const CommSample* sample_of(const Profile& profile, const std::string& operation, int ranks, const cluster::Link& link) {
  const CommSample* best = nullptr;
  for (const CommSample& sample : profile.communication) {
    if (sample.operation != operation || sample.link != link.name) continue;
    if (best == nullptr || std::abs(sample.ranks - ranks) < std::abs(best->ranks - ranks)) best = &sample;
  }
  return best;
}

// Linear between the measured sizes and on from the last two; below the smallest it costs what that one costs.
double read_at(const std::vector<CommPoint>& points, double bytes) {
  if (bytes <= static_cast<double>(points.front().size.value) || points.size() == 1) return points.front().seconds.median;
  std::size_t upper = 1;
  while (upper + 1 < points.size() && bytes > static_cast<double>(points[upper].size.value)) ++upper;
  const CommPoint& a = points[upper - 1];
  const CommPoint& b = points[upper];
  const double share = (bytes - static_cast<double>(a.size.value)) / static_cast<double>((b.size - a.size).value);
  return std::max(a.seconds.median + share * (b.seconds.median - a.seconds.median), a.seconds.median);
}

double alone_at(const CommSample& sample, double bytes) {
  return sample.points.size() > 1 ? read_at(sample.points, bytes) : sample.latency.value + bytes / sample.bandwidth.value;
}

// Beyond the sizes measured in turn it differs from the time alone as at the nearest of them.
double in_turn_at(const CommSample& sample, double bytes) {
  if (sample.in_turn.empty()) return alone_at(sample, bytes);
  const double within =
      std::clamp(bytes, static_cast<double>(sample.in_turn.front().size.value), static_cast<double>(sample.in_turn.back().size.value));
  return std::max(1e-6, read_at(sample.in_turn, within) + alone_at(sample, bytes) - alone_at(sample, within));
}

}  // namespace

Seconds collective_time(const Profile& profile, const std::string& operation, Bytes bytes, int ranks, const cluster::Link& link,
                        Medium medium, Pace pace) {
  if (ranks < 2) return Seconds(0);
  const double size = static_cast<double>(bytes.value);
  const CommSample* sample = sample_of(profile, operation, ranks, link);
  if (sample == nullptr) return estimate(operation, size, ranks, link, medium);
  const double measured = pace == Pace::alone ? alone_at(*sample, size) : in_turn_at(*sample, size);
  // A message concerns two ranks, however many were there when it was measured.
  if (sample->ranks == ranks || operation == "send") return Seconds(measured);
  return Seconds(measured * estimate(operation, size, ranks, link, medium).value /
                 estimate(operation, size, sample->ranks, link, medium).value);
}

Overlap overlap_of(const Profile& profile, const std::string& operation, int ranks, const cluster::Link& link) {
  Overlap out{std::max(1.0, profile.overlap_slowdown), 1};
  const CommSample* sample = sample_of(profile, operation, ranks, link);
  if (sample != nullptr && sample->slows.median > 0) out = {std::max(1.0, sample->slows.median), std::max(1.0, sample->slowed.median)};
  return out;
}

}  // namespace tessera::profile
