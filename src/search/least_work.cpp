#include "search/least_work.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::search {

LeastWork::LeastWork(const BlockProblem& problem, const cost::CostModel& cost_model)
    : problem_(problem), cost_model_(cost_model), speeds_(problem.cluster.groups.size(), 0) {
  for (std::size_t g = 0; g < speeds_.size(); ++g) {
    if (!problem.cluster.groups[g].device.has(problem.precision)) continue;
    const bool first = of_repeat_.empty();
    for (std::size_t r = 0; r < problem.model.repeats.size(); ++r) {
      const auto [forward, backward] = cost_model.least_passes(static_cast<int>(r), static_cast<int>(g));
      if (first) {
        of_repeat_.push_back({forward, backward});
        all_.forward += problem.model.repeats[r].count * forward;
        all_.backward += problem.model.repeats[r].count * backward;
      }
      if (forward > 0) speeds_[g] = std::max(speeds_[g], of_repeat_[r].forward / forward);
      if (backward > 0) speeds_[g] = std::max(speeds_[g], of_repeat_[r].backward / backward);
    }
  }
}

double LeastWork::speed(const GroupCut& cut) const {
  const std::vector<cost::StageDevices::Part>& parts = cost_model_.parts_of(cut.devices).parts;
  double out = 0;
  for (const cost::StageDevices::Part& part : parts) out += (parts.size() == 1 ? cut.width : part.ranks) * speeds_[part.group];
  return out;
}

double LeastWork::step(const Outer& outer) const {
  double leftover = 1;
  double all = 0;
  double most = 0;
  for (const GroupCut& cut : outer.groups) {
    leftover = std::min(leftover, cost_model_.weight_pass_bubble(cut.devices));
    all += cut.stages * speed(cut);
    most = std::max(most, speed(cut));
  }
  return step(all, most, outer.groups.size() == 1 ? outer.stages() : 0, outer.micro_batches,
              cost::warm_up_of(outer.schedule, outer.chunks, leftover));
}

double LeastWork::step(int group, int width, int ranks, std::int64_t micro_batches, const cost::WarmUp& fill) const {
  const double speed = width * speeds_[group];
  return step(ranks * speed, speed, ranks, micro_batches, fill);
}

// A stage is busy for m (f + b) less its share of the fill. The busiest stage is no less busy than the mean, in which each stage weighs
// as much as it is fast; and all stages fill the pipeline no faster than if the fastest held every block.
double LeastWork::step(double all, double most, int alike, std::int64_t micro_batches, const cost::WarmUp& fill) const {
  if (all <= 0) return 0;
  const auto m = static_cast<double>(micro_batches);
  const double samples = static_cast<double>(problem_.global_batch) / m;
  const auto busy = [&](const Passes& passes) {
    return samples * ((m - fill.forward) * passes.forward + (m - fill.backward) * passes.backward);
  };
  double busiest = busy(all_) / all;
  // Of equal stages, one holds at least an even share of each repeat's blocks, in whole blocks.
  for (std::size_t r = 0; alike > 0 && r < of_repeat_.size(); ++r)
    busiest = std::max(busiest, busy(of_repeat_[r]) * std::ceil(static_cast<double>(problem_.model.repeats[r].count) / alike) / most);
  return busiest + samples * (fill.forward * all_.forward + fill.backward * all_.backward) / most;
}

}  // namespace tessera::search
