// Internal: gathers on rank 0 how long all ranks compute and exchange, for a SpeedWatch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/comm.hpp"
#include "train/speed_watch.hpp"

namespace tessera::train {

class SpeedMeter {
 public:
  // `programs` is by rank. The communicator must outlive the meter.
  SpeedMeter(std::vector<program::Program> programs, comm::Communicator& comm);

  // Called by all ranks alike after each step, with what this rank did in it, on its host's clock. About once a second, or after each step
  // where steps take longer, the ranks send theirs to rank 0, which returns what has changed; the others return nothing. The first two
  // steps do not count.
  std::vector<SpeedChange> add(const program::TracedRank& step);

 private:
  void agree_on_steps(Seconds step);
  void begin();
  std::vector<double> packed(const program::TracedRank& step, Seconds offset) const;
  void unpack(int rank, const std::vector<double>& values, SpeedWindow& window, program::TracedStep& step) const;

  const std::vector<program::Program> programs_;
  comm::Communicator& comm_;
  std::unique_ptr<SpeedWatch> watch_;  // on rank 0
  std::int64_t made_ = 0;
  std::int64_t every_ = 0;  // steps of a window; equal on all ranks
  bool apart_ = false;      // the ranks do not share one clock
  SpeedWindow window_;      // of this rank: the sums of its steps so far
};

}  // namespace tessera::train
