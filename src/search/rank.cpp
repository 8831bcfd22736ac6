#include "search/rank.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/parallel.hpp"
#include "cost/extrapolation.hpp"

namespace tessera::search {
namespace {

// So much shorter than the closed form a step by the clock may be.
constexpr double kClose = 1.05;

}  // namespace

Seconds rank_by_simulation(SearchResult& result, const model::ModelSpec& model, const model::TrainSpec& train,
                           const cluster::ClusterSpec& cluster, const profile::Profile& profile, const std::atomic<bool>* stop) {
  // The simulator plays samples of one length.
  if (result.best.lengths && result.best.lengths->mean > 0) return result.best.predicted->step;
  cost::CostModel cost_model(model, train, cluster, profile);
  Seconds shortest = sim::simulate(result.best, cost_model).result.step;
  // The clock finds more to wait for than the closed form, seldom less: what is predicted to take longer has no chance.
  std::vector<Candidate*> open;
  for (std::vector<Candidate>* candidates : {&result.runners_up, &result.close})
    for (Candidate& candidate : *candidates)
      if (candidate.step() <= kClose * shortest) open.push_back(&candidate);
  std::vector<std::optional<Seconds>> steps(open.size());
  const std::size_t threads = std::min(threads_of_machine(), open.size());
  std::vector<std::unique_ptr<cost::CostModel>> cost_models(threads);
  in_parallel(threads, open.size(), [&](std::size_t thread, std::size_t i) {
    if (is_set(stop)) return;
    auto& own = cost_models[thread];
    if (!own) own = std::make_unique<cost::CostModel>(model, train, cluster, profile);
    steps[i] = sim::simulate(open[i]->plan, *own).result.step;
  });
  Candidate* faster = nullptr;
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (!steps[i] || *steps[i] >= shortest) continue;
    shortest = *steps[i];
    faster = open[i];
  }
  if (faster == nullptr) return shortest;
  std::swap(result.best, faster->plan);
  std::swap(result.best_family, faster->family);
  // Runners-up are of other families.
  const auto from_close = std::ranges::find_if(result.close, [&](const Candidate& candidate) { return &candidate == faster; });
  if (from_close != result.close.end()) {
    std::erase_if(result.runners_up, [&](const Candidate& candidate) { return candidate.family == result.best_family; });
    if (from_close->family != result.best_family) result.runners_up.push_back(std::move(*from_close));
    result.close.erase(from_close);
  }
  std::ranges::stable_sort(result.runners_up, {}, &Candidate::step);
  return shortest;
}

void keep_within_measured(SearchResult& result, const model::ModelSpec& model, const cluster::ClusterSpec& cluster) {
  const auto within = [&](const Candidate& candidate) { return cost::within_measured(candidate.plan, model, cluster); };
  if (cost::within_measured(result.best, model, cluster) || std::ranges::any_of(result.runners_up, within)) return;
  std::ranges::stable_sort(result.close, {}, &Candidate::step);
  const auto best = std::ranges::find_if(result.close, within);
  if (best == result.close.end()) return;
  result.runners_up.push_back(std::move(*best));
  result.close.erase(best);
  std::ranges::stable_sort(result.runners_up, {}, &Candidate::step);
}

}  // namespace tessera::search
