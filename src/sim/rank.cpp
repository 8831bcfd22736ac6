#include "sim/rank.hpp"

#include <algorithm>

namespace tessera::sim {
namespace {

// How far behind the best prediction a plan may be to have a chance: closed form and clock are seldom further apart.
constexpr double kClose = 1.1;

}  // namespace

Seconds rank_by_simulation(plan::SearchResult& result, const model::ModelSpec& model, const model::TrainSpec& train, const cluster::ClusterSpec& cluster,
                           const profile::Profile& profile) {
  const auto step_of = [&](const plan::Plan& plan) { return simulate(plan, model, train, cluster, profile).result.step; };
  const Seconds predicted = result.best.predicted->step;
  Seconds shortest = step_of(result.best);
  plan::Candidate* faster = nullptr;
  for (plan::Candidate& candidate : result.runners_up) {
    if (candidate.plan.predicted->step > kClose * predicted) continue;
    const Seconds step = step_of(candidate.plan);
    if (step >= shortest) continue;
    shortest = step;
    faster = &candidate;
  }
  if (faster == nullptr) return shortest;
  std::swap(result.best, faster->plan);
  std::swap(result.best_family, faster->family);
  std::stable_sort(result.runners_up.begin(), result.runners_up.end(),
                   [](const plan::Candidate& a, const plan::Candidate& b) { return a.plan.predicted->step < b.plan.predicted->step; });
  return shortest;
}

}  // namespace tessera::sim
