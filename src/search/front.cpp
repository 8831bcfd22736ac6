#include "search/front.hpp"

#include <algorithm>

#include "search/exhausted.hpp"

namespace tessera::search {
namespace {

double share_of(const FrontPoint& point) { return point.memory / point.limit; }

}  // namespace

void Front::add(FrontPoint point) {
  const double share = share_of(point);
  const auto above = by_share_.upper_bound(share);
  if (above != by_share_.begin() && std::prev(above)->second.step <= point.step) return;
  auto next = by_share_.lower_bound(share);
  while (next != by_share_.end() && next->second.step >= point.step) next = by_share_.erase(next);
  by_share_.emplace(share, std::move(point));
}

std::vector<FrontPoint> Front::points() const {
  constexpr double kApart = 0.99;
  std::vector<FrontPoint> out;
  for (auto entry = by_share_.rbegin(); entry != by_share_.rend(); ++entry)
    if (out.empty() || entry->first < kApart * share_of(out.back())) out.push_back(entry->second);
  return out;
}

FrontPoint front_point(const plan::Plan& plan, const std::string& family, const cluster::ClusterSpec& cluster) {
  // Of most blocks of the first stage.
  const auto blocks = [](const plan::StrategyRun& run) { return run.last - run.first; };
  const plan::Strategy& strategy = std::ranges::max_element(plan.stages.front().runs, {}, blocks)->strategy;
  std::string detail = text(plan.micro_batches, plan.micro_batches == 1 ? " micro-batch of " : " micro-batches of ",
                            plan.micro_batch_text(), ", ", plan.schedule_text());
  if (strategy.zero > 0) detail += text(", zero ", strategy.zero);
  if (strategy.recompute != model::Recompute::none) detail += text(", recompute ", model::name_of(strategy.recompute));
  const Usage usage = fullest(plan, cluster);
  return {family, detail, plan.predicted->step, usage.memory, usage.limit};
}

}  // namespace tessera::search
