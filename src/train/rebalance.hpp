// What to do about hosts that have become slower or faster than the plan expects: another plan for the same ranks, which they take between
// two steps.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"
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
  std::optional<Rebalanced> answer(const plan::Plan& now, const std::vector<SpeedChange>& changes);

 private:
  const model::JobSpec& job_;
  cluster::ClusterSpec cluster_;
  const profile::Profile profile_;
  std::map<int, double> ratios_;  // by rank, under the plan that runs: how long it takes beside what cluster_ says
};

}  // namespace tessera::train
