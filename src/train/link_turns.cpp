#include "train/link_turns.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::train {
namespace {

constexpr double kLeastSteps = 50;
constexpr double kOfTime = 0.02;
constexpr std::int64_t kUnnamed = 4;  // times as long a rest

}  // namespace

bool LinkTurns::due(const std::vector<SpeedChange>& changes, std::int64_t made) {
  asked_ = asked_ || std::any_of(changes.begin(), changes.end(), [](const SpeedChange& change) { return change.between_hosts; });
  return made >= rests_until_ && (asked_ || (returns_ && made >= returns_at_));
}

void LinkTurns::measured(std::int64_t made, double steps, bool changed) {
  const auto rest = static_cast<std::int64_t>(std::max(kLeastSteps, std::ceil(steps / kOfTime)));
  asked_ = false;
  returns_ = returns_ || changed;
  rests_until_ = made + rest;
  returns_at_ = made + kUnnamed * rest;
}

}  // namespace tessera::train
