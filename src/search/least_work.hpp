// Internal to the search over blocks: lower bounds for outer choices and templates that are nearly free, because no strategy is priced.
#pragma once

#include <cstdint>
#include <vector>

#include "cost/cost_model.hpp"
#include "cost/warm_up.hpp"
#include "search/outer_choices.hpp"

namespace tessera::search {

// Bounds from the model's products and attention alone, at the devices' best rates.
class LeastWork {
 public:
  // The cost model must outlive it, and have registered the devices that are asked about.
  LeastWork(const BlockProblem& problem, const cost::CostModel& cost_model);

  // Seconds; no plan of the outer choice is faster.
  double step(const Outer& outer) const;
  // Seconds; no pipeline of `ranks` pipeline ranks, each of `width` devices of a group, is faster, at any depth.
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
