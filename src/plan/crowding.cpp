#include "plan/crowding.hpp"

#include <map>
#include <utility>

#include "base/error.hpp"

namespace tessera::plan {

std::string crowding_of(const Plan& plan, const cluster::ClusterSpec& cluster) {
  struct Host {
    int workers = 0;
    int threads = 0;
  };
  std::map<std::pair<int, int>, Host> hosts;
  for (const RankPlace& place : plan.ranks) {
    Host& host = hosts[{place.group, place.node}];
    ++host.workers;
    host.threads += place.threads;
  }
  std::string out;
  double most = 1;
  for (const auto& [at, host] : hosts) {
    const cluster::ResourceGroup& group = cluster.groups.at(static_cast<std::size_t>(at.first));
    if (!group.device.shares_host() || group.device.cores <= 0) continue;
    const double each = static_cast<double>(host.threads) / group.device.cores;
    if (each <= most) continue;
    most = each;
    out = text(host.workers, " worker", host.workers == 1 ? "" : "s", " with ", host.threads, " thread", host.threads == 1 ? "" : "s",
               " in all share the ", group.device.cores, " core", group.device.cores == 1 ? "" : "s", " of a host of ", group.name,
               " and take turns: fewer workers or threads would be as fast");
  }
  return out;
}

}  // namespace tessera::plan
