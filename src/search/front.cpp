#include "search/front.hpp"

#include <algorithm>

#include "search/search.hpp"

namespace tessera::search {
namespace {

double share_of(const FrontPoint& point) { return point.memory / point.limit; }

std::string counted(std::int64_t count, const char* singular, const char* plural) {
  return text(count, ' ', count == 1 ? singular : plural);
}

}  // namespace

bool Front::admits(double seconds, double share) const {
  const auto above = by_share_.upper_bound(share);
  return above == by_share_.begin() || std::prev(above)->second.step.value > seconds;
}

void Front::add(FrontPoint point) {
  const double share = share_of(point);
  if (!admits(point.step.value, share)) return;
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

FrontPoint front_point(const plan::Plan& plan, const std::string& family, const Usage& usage) {
  // Of most blocks of the first stage.
  const std::vector<plan::StrategyRun>& runs = plan.stages.front().runs;
  const plan::Strategy& strategy = std::max_element(runs.begin(), runs.end(), [](const plan::StrategyRun& a, const plan::StrategyRun& b) {
                                     return a.last - a.first < b.last - b.first;
                                   })->strategy;
  std::string detail =
      text(counted(plan.micro_batches, "micro-batch", "micro-batches"), " of ", plan.micro_batch_text(), ", ", plan.schedule_text());
  if (strategy.zero > 0) detail += text(", zero ", strategy.zero);
  if (strategy.recompute != model::Recompute::none) detail += text(", recompute ", model::name_of(strategy.recompute));
  return {family, detail, plan.predicted->step, usage.memory, usage.limit};
}

}  // namespace tessera::search
