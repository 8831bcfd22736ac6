// What to do about hosts, and links between them, that have become slower or faster than the plan expects: another plan for the same ranks,
// which they take between two steps.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"
#include "profile/host_links.hpp"
#include "profile/profile.hpp"
#include "train/speed_watch.hpp"

namespace tessera::train {

struct Rebalanced {
  plan::Plan plan;               // on the places of the plan before it, rank by rank
  cluster::ClusterSpec cluster;  // with the hosts' speeds as the plan counts them
  std::string words;             // what changes, and what that gains
};

// Not thread-safe. On rank 0 alone; the job must outlive it.
class Rebalancer {
 public:
  // `cluster` and `profile`: what the plan was made from.
  Rebalancer(const model::JobSpec& job, cluster::ClusterSpec cluster, profile::Profile profile);

  // Searches as for the first plan, with the speeds that the hosts have now; what `parallel:` fixes stays. Takes as long as the search
  // does. No value where the ranks share one host, or no plan on the same places is predicted to be at least 3 % faster than `now`.
  // Once links were measured anew, plans are priced by them (train/link_drift.hpp), and `now` with its replicas in the order of the best
  // ring (search::order_by_links) is one of those that it chooses from.
  std::optional<Rebalanced> answer(const plan::Plan& now, const std::vector<SpeedChange>& changes);

  // Takes what Trainer::measure_links has found of the hosts of `now`, all of one group, in place of what the profile says. Returns in
  // words what has changed (take_links of train/link_drift.hpp).
  std::string take_links(const plan::Plan& now, const std::vector<profile::CommSample>& links);
  // The profile as it would have been measured over the links as they were last taken.
  profile::Profile profile() const;

 private:
  // What is known of links since they were measured in this run.
  struct Links {
    int group = 0;   // of the cluster, whose hosts they join
    double hop = 0;  // measured_hop of the profile as it was given
  };
  std::optional<profile::HostLinks> links() const;

  const model::JobSpec& job_;
  cluster::ClusterSpec cluster_;
  profile::Profile profile_;      // with the links as they were last taken, and collectives as they were first measured
  std::map<int, double> ratios_;  // by rank, under the plan that runs: how long it takes beside what cluster_ says
  std::optional<Links> taken_;
};

}  // namespace tessera::train
