#include "search/serving.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.hpp"
#include "cost/cost.hpp"
#include "cost/cost_model.hpp"
#include "model/forms.hpp"
#include "sim/sim.hpp"

namespace tessera::search {
namespace {

// Servers leave at least this share of a host to its ranks, however much they have to do: what is more shows in the time of pulls.
constexpr double kLeft = 0.1;

using Serving = std::vector<int>;

// Of each host, in the order of cluster::speeds_of_hosts; 1 where it has accelerators, whose ranks servers do not disturb.
struct Host {
  double speed = 1;
  int cores = 1;
  bool computes = true;  // its ranks do, on the cores that servers take
};

std::vector<Host> hosts_of(const cluster::ClusterSpec& cluster) {
  std::vector<Host> out;
  for (const cluster::ResourceGroup& group : cluster.groups)
    for (int node = 0; node < group.nodes; ++node)
      out.push_back({group.speed_of(node), std::max(1, group.device.cores), group.device.shares_host()});
  return out;
}

std::vector<Serving> servings(const model::JobSpec& job, const std::vector<Host>& hosts, bool priced) {
  const int given = job.parameter_servers.threads;
  const std::size_t count = hosts.size();
  if (!priced) return {Serving(count, std::max(1, given))};
  std::vector<std::size_t> by_speed(count);
  std::iota(by_speed.begin(), by_speed.end(), std::size_t{0});
  std::ranges::stable_sort(by_speed, {}, [&](std::size_t host) { return hosts[host].speed; });
  constexpr int kMostThreads = 4;
  const int cores = std::ranges::min(hosts, {}, &Host::cores).cores;
  std::vector<Serving> out;
  for (const std::size_t serve : std::set<std::size_t>{count, (count + 1) / 2, 1})
    for (int threads = std::max(1, given); threads <= std::max({1, given, std::min(cores, kMostThreads)}); threads *= 2) {
      Serving serving(count, 0);
      for (std::size_t i = 0; i < serve; ++i) serving[by_speed[i]] = threads;
      out.push_back(std::move(serving));
      if (given > 0) break;
    }
  return out;
}

// How fast hosts compute beside their servers in steps of such a length.
std::vector<double> speeds_beside(const Serving& serving, const std::vector<Host>& hosts, double served, Seconds step) {
  const int threads = std::accumulate(serving.begin(), serving.end(), 0);
  std::vector<double> out;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    const Host& of = hosts[host];
    const double seconds = of.computes ? served * serving[host] / threads / of.speed : 0;
    out.push_back(of.speed * std::max(kLeft, 1 - seconds / (step.value * of.cores)));
  }
  return out;
}

// Seconds that servers of speed 1 work in a step.
double served_in_step(const model::JobSpec& job, const profile::Profile& profile) {
  const model::BlockSpec& tables = *job.model.blocks()[model::tables_block(job.model)].spec;
  double each = 0;
  for (const profile::RowsSample& sample : profile.rows) each += sample.server.median;
  return each * static_cast<double>(job.train.global_batch * model::lookups_of_sample(tables));
}

// Its place in the order of cluster::speeds_of_hosts.
int host_of(const plan::RankPlace& place, const cluster::ClusterSpec& cluster) {
  int host = place.node;
  for (int group = 0; group < place.group; ++group) host += cluster.groups[group].nodes;
  return host;
}

// Those of a host are in the process of its first rank. With rank 0 where no such host has a rank.
std::vector<plan::Server> servers_of(const std::vector<plan::RankPlace>& ranks, const Serving& serving,
                                     const cluster::ClusterSpec& cluster) {
  std::vector<plan::Server> out;
  std::set<int> hosts;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank)
    if (const int host = host_of(ranks[rank], cluster); hosts.insert(host).second && serving.at(host) > 0)
      out.push_back({.rank = rank, .threads = serving[host]});
  if (out.empty()) out.push_back({.rank = 0, .threads = 1});
  return out;
}

}  // namespace

std::vector<int> serving_of(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  Serving out(cluster::speeds_of_hosts(cluster).size(), 0);
  for (const plan::Server& server : plan.servers) out.at(host_of(plan.ranks.at(server.rank), cluster)) += server.threads;
  return out;
}

SearchResult search_serving(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const profile::Profile& profile,
                            const SearchOptions& options, const SearchOn& search) {
  const std::vector<Host> hosts = hosts_of(cluster);
  const double served = served_in_step(job, profile);
  const std::vector<Serving> all = options.serving.empty() ? servings(job, hosts, served > 0) : std::vector<Serving>(1, options.serving);
  SearchOptions each = options;
  each.serving.clear();
  if (served > 0) each.seconds = options.seconds / static_cast<double>(all.size() + 2);
  cost::CostModel cost_model(job.model, job.train, cluster, profile);
  std::int64_t considered = 0;
  const auto with = [&](const Serving& serving, const cluster::ClusterSpec& beside) {
    SearchResult result = search(beside, each);
    considered += result.considered;
    const auto serve = [&](plan::Plan& plan) {
      plan.cluster_fingerprint = cluster.fingerprint();
      plan.servers = servers_of(plan.ranks, serving, cluster);
      if (served > 0 && cost::plays_exchanges(plan, cluster)) plan.predicted = sim::predict(plan, cost_model);
    };
    serve(result.best);
    for (std::vector<Candidate>* const candidates : {&result.runners_up, &result.close, &result.too_large})
      for (Candidate& candidate : *candidates) serve(candidate.plan);
    return result;
  };
  SearchResult best = with(all.front(), cluster);
  if (served == 0 || !cost::plays_exchanges(best.best, cluster)) return best;
  Serving chosen = all.front();
  const auto try_with = [&](const Serving& serving, Seconds step) {
    if (options.watch != nullptr && options.watch->stop) return;
    try {
      SearchResult result = with(serving, cluster::with_speeds(cluster, speeds_beside(serving, hosts, served, step)));
      if (result.best.predicted->step >= best.best.predicted->step) return;
      best = std::move(result);
      chosen = serving;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::interrupted) throw;  // there is a plan already
    }
  };
  const Seconds unknowing = best.best.predicted->step;
  for (const Serving& serving : all) try_with(serving, unknowing);
  // Shorter steps leave servers less time.
  try_with(Serving(chosen), best.best.predicted->step);
  best.considered = considered;
  return best;
}

}  // namespace tessera::search
