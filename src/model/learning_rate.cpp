#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/job.hpp"

namespace tessera::model {

double learning_rate(const TrainSpec& train, std::int64_t step) {
  const LrScheduleSpec& schedule = train.lr_schedule;
  const double peak = train.optimizer.lr;
  if (step < schedule.warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup);
  if (schedule.kind == LrScheduleKind::constant) return peak;
  // 0 at the end of the warm-up, 1 at the last step.
  const double length = static_cast<double>(std::max<std::int64_t>(1, train.steps - 1 - schedule.warmup));
  const double progress = std::clamp(static_cast<double>(step - schedule.warmup) / length, 0.0, 1.0);
  const double remaining = schedule.kind == LrScheduleKind::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * progress)) : 1 - progress;
  return peak * (schedule.min_ratio + (1 - schedule.min_ratio) * remaining);
}

}  // namespace tessera::model
