#include "profile/exchange_time.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tessera::profile {

Exchanges::Exchanges(const cluster::ResourceGroup& group, const Calibration& calibration, int dealt_over)
    : calibration_(calibration),
      dealt_over_(dealt_over),
      domain_(std::max(1, std::min(group.domain(), group.nodes * group.devices_per_node))),
      domains_(group.nodes * group.devices_per_node / domain_) {
  double inside = group.inside.bandwidth.value;
  if (group.inside.shared) inside /= group.devices_per_node;
  // Behind a PCIe switch the devices share one way to the others.
  if (group.devices_per_switch > 0 && group.devices_per_switch < group.devices_per_node)
    inside = std::min(inside, group.uplink.bandwidth.value / group.devices_per_switch);
  inside_ = inside * calibration.inside;
  const double nodes = static_cast<double>(domain_) / group.devices_per_node;
  network_ = group.network.bandwidth.value * group.adapters * nodes * calibration.network;
  inside_latency_ = std::max(calibration.latency, group.inside.latency.value);
  network_latency_ = std::max(calibration.latency, group.network.latency.value);
  rack_ = group.oversubscription;
  rack_devices_ = group.nodes_per_rack * group.devices_per_node;
}

int Exchanges::ranks_per_domain(ProcessGroup group) const {
  if (dealt_over_ > 1) {
    const int nodes = std::min(group.ranks, dealt_over_ / std::gcd(group.stride, dealt_over_));
    return std::max(1, group.ranks / nodes);
  }
  return group.stride >= domain_ ? 1 : std::max(1, std::min(group.ranks, domain_ / group.stride));
}

bool Exchanges::leaves_rack(ProcessGroup group) const {
  const int span = dealt_over_ > 1 ? std::min(group.ranks * group.stride, dealt_over_) * domain_ : group.ranks * group.stride;
  return rack_devices_ > 0 && span > rack_devices_;
}

double Exchanges::collective(Collective operation, double bytes, ProcessGroup group) const {
  if (group.ranks < 2 || bytes <= 0) return 0;
  const double volume = (operation == Collective::all_reduce ? 2 : 1) * bytes * (group.ranks - 1) / group.ranks;
  const int joined = ranks_per_domain(group);
  const bool inside = joined >= group.ranks;
  // A sum goes up and down a tree; gathers and scatters hand on from rank to rank around a ring, whatever its length.
  const double hop = inside ? inside_latency_ : network_latency_;
  const double latency = operation == Collective::all_reduce ? (inside ? 2 : 4) * std::log2(static_cast<double>(group.ranks)) * hop
                                                             : hop + (group.ranks - 1) * calibration_.rank_latency;
  if (inside) return volume / inside_ + latency + calibration_.launch;
  // Each of the groups on a node has its members' share of the adapters.
  double rate = std::min(inside_, device_share() * joined);
  if (leaves_rack(group)) rate /= rack_;
  return volume / rate + latency + calibration_.launch;
}

double Exchanges::all_to_all(double bytes, int copies, ProcessGroup group) const {
  if (group.ranks < 2 || bytes <= 0) return 0;
  const double n = group.ranks;
  const int joined = ranks_per_domain(group);
  const double latency = (joined >= group.ranks ? inside_latency_ : network_latency_) * std::log2(n) + calibration_.launch;
  if (joined >= group.ranks) return bytes * (n - 1) / n / inside_ + latency;
  const double nodes = n / joined;
  // Of one item's copies: the expected number of other nodes among those that want one.
  const double leaving = bytes / copies * (nodes - 1) * (1 - std::pow(1 - 1 / nodes, copies));
  double rate = device_share();
  if (leaves_rack(group)) rate /= rack_;
  return std::max(leaving / rate, bytes * (joined - 1) / n / inside_) + latency;
}

double Exchanges::message(double bytes, int stride) const {
  const int apart = dealt_over_ > 1 ? stride % dealt_over_ * domain_ : stride;  // in devices
  double rate = apart < domain_ ? inside_ : device_share();
  if (rack_devices_ > 0 && apart >= rack_devices_) rate /= rack_;
  return bytes / rate + 2 * (apart < domain_ ? inside_latency_ : network_latency_);
}

double Exchanges::stage_message(double bytes, int width) const {
  const double out = message(bytes, width);
  if (domains_ < 2 || width >= domain_) return out;
  return std::max(out, bytes * width / network_ + 2 * network_latency_);
}

double Exchanges::ring_step(double bytes, ProcessGroup group) const {
  if (group.ranks < 2) return 0;
  const int joined = ranks_per_domain(group);
  if (joined >= group.ranks) return bytes / inside_ + 2 * inside_latency_;
  double rate = std::min(inside_, device_share() * (dealt_over_ > 1 ? 1 : joined));
  if (leaves_rack(group)) rate /= rack_;
  return bytes / rate + 2 * network_latency_;
}

}  // namespace tessera::profile
