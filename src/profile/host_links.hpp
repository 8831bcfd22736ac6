// The links between the hosts of a cluster one by one, where a profile has measured them, and the order of a ring that avoids slow ones.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "profile/profile.hpp"

namespace tessera::profile {

// The name under which a profile keeps what it measured of the link between hosts `a` and `b`, of those that `link` joins: a CommSample of
// "send" between two ranks, called "tcp-1g:0-3" for either order of the hosts 0 and 3.
std::string pair_link(const std::string& link, int a, int b);

// Messages between hosts 0 to hosts() - 1, each pair of which was measured.
class HostLinks {
 public:
  // No value where a pair was not measured, or there are fewer than three hosts.
  static std::optional<HostLinks> of(const Profile& profile, const std::string& link, int hosts);
  int hosts() const { return hosts_; }
  // Seconds of a message from host `a` to host `b`, by the shortest that were measured; 0 within a host. Throws std::out_of_range for other
  // hosts.
  double seconds(int a, int b, Bytes bytes) const;

 private:
  int hosts_ = 0;
  Profile pairs_;
  std::string link_;
};

// The order in which `members` (0 to members - 1, beginning with 0) form a ring whose slowest hop is shortest and, of those, whose sum of
// hops is. Every step of a ring waits for its slowest hop. `seconds(a, b)` is that of a hop, 0 or more; hops are taken as equal both ways:
// the longer one counts. Exact up to eight members, in O(n!); beyond, nearest neighbours improved by exchanging pairs of hops, in O(n^3) a
// round. The same hops give the same order: 0, 1, 2, ... unless another one's slowest hop is at least 10 % shorter, since links that are
// equal measure unequal.
std::vector<int> shortest_ring(int members, const std::function<double(int, int)>& seconds);

// By what bytes a ring is chosen: large pieces, as gradients are exchanged in.
inline constexpr Bytes kRingPiece = Bytes(1 << 20);

}  // namespace tessera::profile
