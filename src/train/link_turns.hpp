// Internal: when a run measures the links between its hosts again.
#pragma once

#include <cstdint>
#include <vector>

#include "train/speed_watch.hpp"

namespace tessera::train {

// They are measured when an exchange between hosts has become slow, or is so no longer. Once that has led to another plan, they are
// measured again from time to time: that plan may exchange nothing over the link that was slow, and its recovery would not be seen. Two
// times are kept apart, so that noise does not make a run measure all the time: by 50 steps at least, and by so many that measuring takes
// no more than 2 % of the time (0.5 % where nothing was named). Not thread-safe; equal calls on all ranks have equal answers.
class LinkTurns {
 public:
  // After each step, with what was found in it and how many were made: whether the links are measured now. What is found too early is
  // remembered.
  bool due(const std::vector<SpeedChange>& changes, std::int64_t made);
  // They were, which took the time of so many steps. `changed`: the run goes on under another plan.
  void measured(std::int64_t made, double steps, bool changed);

 private:
  bool asked_ = false;
  bool returns_ = false;  // to measure from time to time
  std::int64_t rests_until_ = 0;
  std::int64_t returns_at_ = 0;
};

}  // namespace tessera::train
