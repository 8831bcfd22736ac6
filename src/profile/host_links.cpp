#include "profile/host_links.hpp"

#include <algorithm>
#include <numeric>

namespace tessera::profile {
namespace {

constexpr int kMostExact = 8;
constexpr double kWorth = 1.1;

using Hops = std::vector<std::vector<double>>;

struct Length {
  double slowest = 0;
  double sum = 0;
  auto operator<=>(const Length&) const = default;
};

double hop(const Hops& hops, int a, int b) { return hops[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)]; }

Length length_of(const std::vector<int>& ring, const Hops& hops) {
  Length out;
  for (std::size_t i = 0; i < ring.size(); ++i) {
    const double seconds = hop(hops, ring[i], ring[(i + 1) % ring.size()]);
    out.slowest = std::max(out.slowest, seconds);
    out.sum += seconds;
  }
  return out;
}

std::vector<int> in_turn(int members) {
  std::vector<int> out(static_cast<std::size_t>(members));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

std::vector<int> exact(int members, const Hops& hops) {
  std::vector<int> ring = in_turn(members), best = ring;
  Length least = length_of(best, hops);
  while (std::next_permutation(ring.begin() + 1, ring.end())) {
    if (ring[1] > ring.back()) continue;  // the same ring the other way round
    const Length length = length_of(ring, hops);
    if (length < least) {
      least = length;
      best = ring;
    }
  }
  return best;
}

std::vector<int> by_neighbours(int members, const Hops& hops) {
  std::vector<int> ring = in_turn(members);
  for (auto next = ring.begin() + 1; next != ring.end(); ++next)
    std::iter_swap(next, std::min_element(next, ring.end(), [&](int a, int b) {
                     return std::pair(hop(hops, next[-1], a), a) < std::pair(hop(hops, next[-1], b), b);
                   }));
  return ring;
}

// Turns stretches of the ring round while that makes it shorter (2-opt: Croes, Operations Research 6, 1958).
void improve(std::vector<int>& ring, const Hops& hops) {
  Length least = length_of(ring, hops);
  for (bool better = true; better;) {
    better = false;
    for (std::size_t first = 1; first + 1 < ring.size(); ++first)
      for (std::size_t last = first + 1; last < ring.size(); ++last) {
        const auto begin = ring.begin() + static_cast<std::ptrdiff_t>(first), end = ring.begin() + static_cast<std::ptrdiff_t>(last) + 1;
        std::reverse(begin, end);
        const Length length = length_of(ring, hops);
        if (length < least) {
          least = length;
          better = true;
        } else {
          std::reverse(begin, end);
        }
      }
  }
}

}  // namespace

std::string pair_link(const std::string& link, int a, int b) { return text(link, ":", std::min(a, b), "-", std::max(a, b)); }

std::optional<HostLinks> HostLinks::of(const Profile& profile, const std::string& link, int hosts) {
  if (hosts < 3) return {};
  HostLinks out;
  out.hosts_ = hosts;
  out.link_ = link;
  for (int a = 0; a < hosts; ++a)
    for (int b = a + 1; b < hosts; ++b) {
      const auto found = std::find_if(profile.communication.begin(), profile.communication.end(), [&](const CommSample& sample) {
        return sample.operation == "send" && sample.link == pair_link(link, a, b);
      });
      if (found == profile.communication.end()) return {};
      CommSample& pair = out.pairs_.communication.emplace_back(*found);
      // What else a host does makes its links seem slower, never faster.
      for (CommPoint& point : pair.points)
        if (point.seconds.low > 0) point.seconds.median = point.seconds.low;
    }
  return out;
}

double HostLinks::seconds(int a, int b, Bytes bytes) const {
  if (std::min(a, b) < 0 || std::max(a, b) >= hosts_)
    throw std::out_of_range(text("no link between hosts ", a, " and ", b, " of ", hosts_));
  if (a == b) return 0;
  cluster::Link link;
  link.name = pair_link(link_, a, b);
  return collective_time(pairs_, "send", bytes, 2, link, Medium::adapter).value;
}

std::vector<int> shortest_ring(int members, const std::function<double(int, int)>& seconds) {
  const std::vector<int> given = in_turn(members);
  if (members < 4) return given;  // three form one ring only
  Hops hops(static_cast<std::size_t>(members), std::vector<double>(static_cast<std::size_t>(members)));
  for (int a = 0; a < members; ++a)
    for (int b = 0; b < members; ++b)
      if (a != b) hops[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)] = std::max(seconds(a, b), seconds(b, a));
  if (members <= kMostExact) {
    const std::vector<int> best = exact(members, hops);
    return length_of(best, hops).slowest * kWorth <= length_of(given, hops).slowest ? best : given;
  }
  std::vector<int> best = by_neighbours(members, hops), other = given;
  improve(best, hops);
  improve(other, hops);
  if (length_of(other, hops) < length_of(best, hops)) best = other;
  return length_of(best, hops).slowest * kWorth <= length_of(given, hops).slowest ? best : given;
}

}  // namespace tessera::profile
