#include "model/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/problems.hpp"

namespace tessera::model {
namespace {

// Of torchtitan's configurations and of MiniCPM (arXiv:2404.06395, section 4.3: about a tenth of the tokens is enough).
constexpr double kDecayRatio = 0.1;

LrScheduleKind read_kind(const ConfigNode& node) {
  const std::string name = node.as_choice({"cosine", "linear", "constant", "wsd"});
  if (name == "wsd") return LrScheduleKind::wsd;
  return name == "cosine" ? LrScheduleKind::cosine : name == "linear" ? LrScheduleKind::linear : LrScheduleKind::constant;
}

DecayShape read_shape(const ConfigNode& node) {
  const std::string name = node.as_choice({"linear", "cosine", "sqrt", "exponential"});
  if (name == "exponential") return DecayShape::exponential;
  return name == "linear" ? DecayShape::linear : name == "cosine" ? DecayShape::cosine : DecayShape::sqrt;
}

std::int64_t share_of(double ratio, std::int64_t steps) {
  return ratio > 0 ? std::max<std::int64_t>(1, std::llround(ratio * static_cast<double>(steps))) : 0;
}

double read_ratio(const ConfigNode& node) {
  const double ratio = node.as_double();
  if (!(ratio >= 0 && ratio <= 1)) throw node.error(text("found ", ratio), "a share of the steps, 0 to 1");
  return ratio;
}

// `key` in steps or `key`_ratio as a share of them.
void read_length(Section& section, const ConfigNode& node, const std::string& key, std::int64_t steps, std::int64_t& length) {
  constexpr std::int64_t kMost = std::int64_t{1} << 32;
  section.read(key, length, [](const ConfigNode& said) { return said.as_int_between(0, kMost); });
  section.read(key + "_ratio", length, [&](const ConfigNode& said) { return share_of(read_ratio(said), steps); });
  section.attempt([&] {
    if (node.has(key) && node.has(key + "_ratio"))
      throw node.at(key + "_ratio").error(text(key, " and ", key, "_ratio say the same thing twice"), "one of them");
  });
}

// The rate over the peak when `progress` of the decay, 0 to 1, is behind.
double decayed(DecayShape shape, double progress, double min_ratio) {
  if (shape == DecayShape::exponential) return std::pow(min_ratio, progress);
  const double left = shape == DecayShape::linear   ? 1 - progress
                      : shape == DecayShape::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * progress))
                                                    : 1 - std::sqrt(progress);
  return min_ratio + (1 - min_ratio) * left;
}

double scheduled(const LrScheduleSpec& schedule, double peak, std::int64_t steps, std::int64_t step) {
  if (step < schedule.warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup);
  if (schedule.kind == LrScheduleKind::constant) return peak;
  const bool wsd = schedule.kind == LrScheduleKind::wsd;
  const DecayShape shape = wsd ? schedule.decay_shape : schedule.kind == LrScheduleKind::cosine ? DecayShape::cosine : DecayShape::linear;
  // The last step at the peak: under wsd the one before the decay, which begins after the warm-up at the earliest.
  const std::int64_t peak_step = wsd ? std::max(schedule.warmup, steps - schedule.decay) - 1 : schedule.warmup;
  const double length = static_cast<double>(std::max<std::int64_t>(1, steps - 1 - peak_step));
  const double progress = std::clamp(static_cast<double>(step - peak_step) / length, 0.0, 1.0);
  return peak * decayed(shape, progress, schedule.min_ratio);
}

}  // namespace

LrScheduleSpec read_schedule(const ConfigNode& node, std::int64_t steps, LrScheduleKind kind) {
  LrScheduleSpec schedule;
  schedule.kind = kind;
  Section section(node, {"kind", "warmup", "warmup_ratio", "decay", "decay_ratio", "decay_shape", "min_ratio"});
  section.read("kind", schedule.kind, read_kind);
  read_length(section, node, "warmup", steps, schedule.warmup);
  if (schedule.kind == LrScheduleKind::wsd) schedule.decay = share_of(kDecayRatio, steps);
  read_length(section, node, "decay", steps, schedule.decay);
  section.read("decay_shape", schedule.decay_shape, read_shape);
  section.read("min_ratio", schedule.min_ratio, [](const ConfigNode& said) {
    const double ratio = said.as_double();
    if (ratio < 0) throw said.error(text("found ", ratio), "a number that is not negative");
    return ratio;
  });
  for (const char* key : {"decay", "decay_ratio", "decay_shape"})
    section.attempt([&] {
      const auto said = node.find(key);
      if (said && schedule.kind != LrScheduleKind::wsd)
        throw said->error(text(key, " means nothing to this kind of schedule"), text("no ", key), "kind: wsd reads it");
    });
  section.attempt([&] {
    if (schedule.decay_shape == DecayShape::exponential && schedule.min_ratio == 0)
      throw node.at("decay_shape").error("an exponential decay never comes to min_ratio 0", "min_ratio above 0, such as 0.1");
  });
  section.finish();
  return schedule;
}

double learning_rate(const TrainSpec& train, std::int64_t step) {
  return scheduled(train.lr_schedule, train.optimizer.lr, train.steps, step);
}

double table_learning_rate(const JobSpec& job, std::int64_t step) {
  const TableOptimizerSpec& optimizer = job.parameter_servers.optimizer;
  return scheduled(optimizer.schedule, optimizer.lr, job.train.steps, step);
}

}  // namespace tessera::model
