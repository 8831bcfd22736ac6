#include "search/rank.hpp"
#include "search/search.hpp"

#include <algorithm>

namespace tessera::search {
namespace {

// So much shorter than the closed form a step by the clock may be.
constexpr double kClose = 1.05;

}  // namespace

Seconds rank_by_simulation(SearchResult& result, const model::ModelSpec& model, const model::TrainSpec& train,
                           const cluster::ClusterSpec& cluster, const profile::Profile& profile, const std::atomic<bool>* stop) {
  cost::CostModel cost_model(model, train, cluster, profile);
  const auto step_of = [&](const plan::Plan& plan) { return sim::simulate(plan, cost_model).result.step; };
  Seconds shortest = step_of(result.best);
  // The clock finds more to wait for than the closed form, seldom less: what is predicted to take longer has no chance.
  const auto shorter = [&](const plan::Plan& plan) {
    if (is_set(stop) || plan.predicted->step > kClose * shortest) return false;
    const Seconds step = step_of(plan);
    if (step >= shortest) return false;
    shortest = step;
    return true;
  };
  Candidate* faster = nullptr;
  for (std::vector<Candidate>* candidates : {&result.runners_up, &result.close})
    for (Candidate& candidate : *candidates)
      if (shorter(candidate.plan)) faster = &candidate;
  if (faster == nullptr) return shortest;
  std::swap(result.best, faster->plan);
  std::swap(result.best_family, faster->family);
  // Runners-up are of other families.
  const auto from_close =
      std::find_if(result.close.begin(), result.close.end(), [&](const Candidate& candidate) { return &candidate == faster; });
  if (from_close != result.close.end()) {
    std::erase_if(result.runners_up, [&](const Candidate& candidate) { return candidate.family == result.best_family; });
    if (from_close->family != result.best_family) result.runners_up.push_back(std::move(*from_close));
    result.close.erase(from_close);
  }
  std::stable_sort(result.runners_up.begin(), result.runners_up.end(),
                   [](const Candidate& a, const Candidate& b) { return a.plan.predicted->step < b.plan.predicted->step; });
  return shortest;
}

}  // namespace tessera::search
