// Internal: gathers on rank 0 how long all ranks compute and exchange, for a SpeedWatch.
#pragma once

#include <map>
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

  // Shorter ones would name ranks that another process takes the core from for a moment.
  static constexpr Seconds kWindow{0.8};

  // Whether the steps since the ranks last compared theirs fill a window.
  bool due() const { return window_.step >= kWindow; }
  // Called by all ranks alike after each step, with what this rank did in it, on its host's clock, and whether they compare now, which they
  // do when it is due on one of them: then the ranks send theirs to rank 0, and all return what it finds changed. The first two steps do
  // not count.
  std::vector<SpeedChange> add(const program::TracedRank& step, bool compare);

 private:
  void begin();
  std::vector<SpeedChange> compared(const program::TracedRank& step);
  std::vector<double> packed(const program::TracedRank& step, Seconds offset) const;
  void unpack(int rank, const std::vector<double>& values, SpeedWindow& window, program::TracedStep& step) const;

  const std::vector<program::Program> programs_;
  comm::Communicator& comm_;
  std::unique_ptr<SpeedWatch> watch_;  // on rank 0
  std::int64_t made_ = 0;
  bool begun_ = false;
  bool apart_ = false;  // the ranks do not share one clock
  // The sums of this rank's steps so far. What it computes is by instruction.
  struct {
    std::int64_t steps = 0;
    Seconds step{0};
    std::map<int, Seconds> computing = {};
  } window_;
};

}  // namespace tessera::train
