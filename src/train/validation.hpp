// Internal: what the evaluations of a run have shown. Losses are equal on all ranks, and so is this.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/best.hpp"

namespace tessera::train {

struct ValidationHistory {
  std::optional<checkpoint::Best> best;  // the lowest loss, and after how many steps
  std::optional<double> gained;          // the loss of the last evaluation that gained
  std::int64_t without_gain = 0;         // evaluations since

  // After `steps` steps. An evaluation gains when its loss lies more than `min_gain` below that of the last one that did; small steps add
  // up. A loss that is not finite is never the best and gains nothing. Returns whether this is the best so far.
  bool add(std::int64_t steps, double loss, double min_gain);

  // Writes its state into checkpoint::State::extra, so that a resumed run goes on counting; keys of others are left alone.
  void write(std::map<std::string, double>& extra) const;
  static ValidationHistory read(const std::map<std::string, double>& extra);
};

}  // namespace tessera::train
