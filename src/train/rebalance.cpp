#include "train/rebalance.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.hpp"
#include "cost/cost_model.hpp"
#include "search/search.hpp"
#include "sim/sim.hpp"
#include "train/link_drift.hpp"

namespace tessera::train {
namespace {

constexpr double kWorth = 1.03;
// Plans of so many degrees may stand on other places.
constexpr int kRunnersUp = 50;

using PlaceKey = std::tuple<int, int, int, int>;
PlaceKey place_of(const plan::RankPlace& place) { return {place.group, place.node, place.device, place.threads}; }

// The plan with its ranks in the order of `now`'s; no value where they stand on other places.
std::optional<plan::Plan> in_order_of(const plan::Plan& now, plan::Plan plan) {
  std::map<PlaceKey, int> rank_at;
  for (std::size_t rank = 0; rank < now.ranks.size(); ++rank) rank_at[place_of(now.ranks[rank])] = static_cast<int>(rank);
  if (plan.ranks.size() != now.ranks.size()) return {};
  std::vector<int> becomes;
  for (const plan::RankPlace& place : plan.ranks) {
    const auto found = rank_at.find(place_of(place));
    if (found == rank_at.end()) return {};
    becomes.push_back(found->second);
  }
  for (plan::Stage& stage : plan.stages)
    for (int& rank : stage.ranks) rank = becomes[static_cast<std::size_t>(rank)];
  const std::vector<Bytes> memory = plan.predicted->memory;
  for (std::size_t rank = 0; rank < becomes.size(); ++rank) plan.predicted->memory[static_cast<std::size_t>(becomes[rank])] = memory[rank];
  plan.ranks = now.ranks;
  plan.servers = now.servers;
  return plan;
}

// "blocks 0-4 on rank 0, 5-9 on ranks 1, 2 with 5 + 3 of 8 samples".
std::string words_of(const plan::Plan& plan) {
  std::string out;
  for (const plan::Stage& stage : plan.stages) {
    out += text(out.empty() ? "blocks " : ", ", stage.first_block(), "-", stage.last_block() - 1,
                stage.ranks.size() == 1 ? " on rank" : " on ranks");
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) out += text(i == 0 ? " " : ", ", stage.ranks[i]);
    if (stage.shares.empty()) continue;
    out += " with ";
    for (const plan::Share& share : stage.shares) out += text(&share == &stage.shares.front() ? "" : " + ", share.samples);
    out += text(" of ", plan.samples(), " samples");
  }
  return out;
}

}  // namespace

Rebalancer::Rebalancer(const model::JobSpec& job, cluster::ClusterSpec cluster, profile::Profile profile)
    : job_(job), cluster_(std::move(cluster)), profile_(std::move(profile)) {}

std::optional<Rebalanced> Rebalancer::answer(const plan::Plan& now, const std::vector<SpeedChange>& changes) {
  for (const SpeedChange& change : changes)
    if (change.rank >= 0) ratios_[change.rank] = change.ratio;
  std::map<std::pair<int, int>, double> of_host;  // of its ranks the one that is furthest from what is expected
  for (std::size_t rank = 0; rank < now.ranks.size(); ++rank) {
    double& ratio = of_host.try_emplace({now.ranks[rank].group, now.ranks[rank].node}, 1.0).first->second;
    const auto found = ratios_.find(static_cast<int>(rank));
    if (found != ratios_.end() && (ratio == 1 || found->second > ratio)) ratio = found->second;
  }
  if (of_host.size() < 2) return {};
  std::vector<double> speeds;
  for (std::size_t g = 0; g < cluster_.groups.size(); ++g)
    for (int node = 0; node < cluster_.groups[g].nodes; ++node) {
      const auto found = of_host.find({static_cast<int>(g), node});
      speeds.push_back(cluster_.groups[g].speed_of(node) / (found == of_host.end() ? 1 : found->second));
    }
  Rebalanced out{{}, cluster::with_speeds(cluster_, speeds), {}};
  // By the links, a plan's collectives take as long as its ring does, and those of the search as the best one.
  const std::optional<profile::HostLinks> links = this->links();
  const auto under = [&](const Drift& drift) {
    std::pair<profile::Profile, cluster::ClusterSpec> conditions(profile_, out.cluster);
    apply(drift, taken_->group, conditions.first, conditions.second);
    return conditions;
  };
  const auto price = [&](const plan::Plan& plan) {
    const auto& [profile, cluster] =
        links ? under(drift_of(plan, job_.model, *links, taken_->group, taken_->hop)) : std::pair(profile_, out.cluster);
    cost::CostModel cost_model(job_.model, job_.train, cluster, profile);
    return sim::predict(plan, cost_model);
  };
  std::set<std::string> vendors;
  for (const plan::RankPlace& place : now.ranks) vendors.insert(cluster_.groups[static_cast<std::size_t>(place.group)].device.vendor);
  const auto [profile, cluster] = links ? under(least_drift(*links, taken_->hop)) : std::pair(profile_, out.cluster);
  search::SearchResult found = search::search(job_, cluster, profile,
                                              {.top = kRunnersUp,
                                               .vendors = {vendors.begin(), vendors.end()},
                                               .serving = now.servers.empty() ? std::vector<int>() : search::serving_of(now, cluster)});
  const Seconds as_it_is = price(now).step;
  std::vector<plan::Plan> plans = {std::move(found.best)};
  for (search::Candidate& candidate : found.runners_up) plans.push_back(std::move(candidate.plan));
  Seconds best = as_it_is / kWorth;
  const auto take = [&](plan::Plan plan) {
    if (links) plan.predicted = price(plan);
    if (plan.predicted->step >= best) return false;
    best = plan.predicted->step;
    out.plan = std::move(plan);
    out.plan.cluster_fingerprint = out.cluster.fingerprint();
    return true;
  };
  bool better = false;
  if (links) {
    plan::Plan reordered = now;
    search::order_by_links(reordered, out.cluster, profile_);
    better = take(std::move(reordered));
  }
  for (plan::Plan& candidate : plans) {
    if (candidate.predicted->step >= best) break;
    std::optional<plan::Plan> plan = in_order_of(now, std::move(candidate));
    if (plan && take(std::move(*plan))) better = true;
  }
  if (!better) return {};
  out.words = text("rebalanced: ", words_of(out.plan), "; a step is expected to take ", to_text(out.plan.predicted->step), ", and ",
                   to_text(as_it_is), " under the plan so far");
  cluster_ = out.cluster;
  ratios_.clear();
  return out;
}

std::string Rebalancer::take_links(const plan::Plan& now, const std::vector<profile::CommSample>& links) {
  const int group = now.ranks.front().group;
  const cluster::ResourceGroup& hosts = cluster_.groups.at(static_cast<std::size_t>(group));
  if (!taken_) taken_ = {group, measured_hop(profile_, hosts)};
  return train::take_links(links, hosts, profile_);
}

profile::Profile Rebalancer::profile() const {
  profile::Profile out = profile_;
  cluster::ClusterSpec cluster = cluster_;
  if (const auto known = links()) apply(least_drift(*known, taken_->hop), taken_->group, out, cluster);
  return out;
}

std::optional<profile::HostLinks> Rebalancer::links() const {
  if (!taken_) return {};
  const cluster::ResourceGroup& hosts = cluster_.groups.at(static_cast<std::size_t>(taken_->group));
  return profile::HostLinks::of(profile_, hosts.network.name, hosts.nodes);
}

}  // namespace tessera::train
