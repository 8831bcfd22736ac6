// Internal to the search over blocks: bounds of outer choices and templates that cost next to nothing, as no strategy is priced.
#pragma once

#include <cstdint>
#include <vector>

#include "cost/cost_model.hpp"
#include "cost/warm_up.hpp"
#include "search/outer_choices.hpp"

namespace tessera::search {

// What a model's products and attention take at the best rates of the devices.
class LeastWork {
 public:
  // The cost model must outlive it, and know the devices that are asked about.
  LeastWork(const BlockProblem& problem, const cost::CostModel& cost_model);

  // Seconds. No plan of the outer choice is faster.
  double step(const Outer& outer) const;
  // No pipeline of so many ranks in a row, each so many devices of a group wide, is faster, of any depth.
  double step(int group, int width, int ranks, std::int64_t micro_batches, const cost::WarmUp& fill) const;

 private:
  // Seconds of one sample on one device of the first group that computes in the precision.
  struct Passes {
    double forward = 0;
    double backward = 0;
  };
  // Stages of the speeds `all` together, the fastest of them of `most`; so many of one kind, or 0.
  double step(double all, double most, int alike, std::int64_t micro_batches, const cost::WarmUp& fill) const;
  // Of the ranks of a stage together, over that of such a device.
  double speed(const GroupCut& cut) const;

  const BlockProblem& problem_;
  const cost::CostModel& cost_model_;
  std::vector<Passes> of_repeat_;  // of one block each
  Passes all_;                     // of all blocks
  std::vector<double> speeds_;     // at most, of one device: by group
};

}  // namespace tessera::search
