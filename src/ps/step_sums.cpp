#include "ps/step_sums.hpp"

#include <limits>

#include "ps/table_lifecycle.hpp"
#include "ps/update.hpp"

namespace tessera::ps {

PushResult StepSums::add(std::int64_t step, int worker, std::span<const Key> keys, std::span<const float> gradients,
                         std::span<const Impressions> impressions) {
  Pushed& pushed = pushed_[{step, worker}];
  const std::size_t dimension = keys.empty() ? 0 : gradients.size() / keys.size();
  PushResult result;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::span<const float> gradient = gradients.subspan(i * dimension, dimension);
    if (!all_finite(gradient) || (!impressions.empty() && !LifecycleState::valid(impressions[i]))) {
      ++result.refused;
      continue;
    }
    ++result.applied;
    pushed.keys.push_back(keys[i]);
    pushed.gradients.insert(pushed.gradients.end(), gradient.begin(), gradient.end());
    if (!impressions.empty()) pushed.impressions.push_back(impressions[i]);
  }
  return result;
}

void StepSums::forget(std::int64_t step, int worker) {
  std::erase_if(pushed_, [&](const auto& one) { return one.first.second == worker && one.first.first >= step; });
}

void StepSums::apply(std::int64_t step, Table& table) {
  const auto begin = pushed_.lower_bound({step, 0}), end = pushed_.upper_bound({step, std::numeric_limits<int>::max()});
  if (begin == end) return;
  Pushed all;
  for (auto one = begin; one != end; ++one) {
    all.keys.insert(all.keys.end(), one->second.keys.begin(), one->second.keys.end());
    all.gradients.insert(all.gradients.end(), one->second.gradients.begin(), one->second.gradients.end());
    all.impressions.insert(all.impressions.end(), one->second.impressions.begin(), one->second.impressions.end());
  }
  pushed_.erase(begin, end);
  batch_.start(all.keys, 1);
  batch_.deal(all.keys.size());
  const Batch::Part& part = batch_.parts().front();
  std::vector<float> sums(part.keys.size() * static_cast<std::size_t>(table.spec().dimension));
  batch_.add_up(part, 0, part.keys.size(), all.gradients, sums);
  std::vector<Impressions> seen(all.impressions.empty() ? 0 : part.keys.size());
  if (!seen.empty()) {
    std::vector<float> shown(seen.size() * kImpressionFloats);
    batch_.add_up(part, 0, part.keys.size(), floats_of(all.impressions), shown);
    for (std::size_t i = 0; i < seen.size(); ++i) seen[i] = {.shows = shown[2 * i], .clicks = shown[2 * i + 1]};
  }
  table.push(part.keys, sums, {}, seen);
}

}  // namespace tessera::ps
