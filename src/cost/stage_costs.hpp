// Internal to the price of a step on CPU workers: what the stages of a plan compute and exchange, whatever the schedule.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "cost/fluid.hpp"
#include "cost/prices.hpp"
#include "plan/plan.hpp"

namespace tessera::cost {

// Seconds of a micro-batch, of the slowest rank of a stage.
struct StageTimes {
  double forward = 0;   // computing
  double backward = 0;  // with recomputation
  double recompute = 0;
  double forward_exchange = 0;  // tensor-parallel, on the critical path
  double backward_exchange = 0;
  double activation_send = 0;  // to the next stage
  double gradient_send = 0;    // from the next stage
  double whole_forward() const { return forward + forward_exchange; }
  double whole_backward() const { return backward + backward_exchange; }
};

// The plan and the prices must outlive it. Seconds; `count`: elements.
class StageCosts {
 public:
  StageCosts(const plan::Plan& plan, Prices& prices);

  const std::vector<StageTimes>& times() const { return times_; }  // by stage
  const plan::Strategy& strategy(int s) const { return plan_.stages[s].runs.front().strategy; }
  // Of a block of the stage, on its slowest rank.
  const BlockPrice& block(int s, const BlockSegment& segment) { return block_price(s, segment, slowest_[s]); }
  // What reduces the gradients of the stage: "all_reduce", or "reduce_scatter" under ZeRO.
  const char* reduction(int s) const { return strategy(s).zero > 0 ? "reduce_scatter" : "all_reduce"; }
  // Between computing and a data-parallel collective of the stage.
  profile::Overlap overlap(int s, const char* operation) const;
  double reduce_time(int s, std::int64_t count) const;
  double gather_time(int s, std::int64_t count) const;
  // Adding up a tied parameter's gradients with those of another stage.
  double tied_time(int s, int other, std::int64_t count) const;
  // The optimizer's.
  double step_time(int s, std::int64_t count) const;
  // One queue a stage for its data-parallel collectives; stages that meet on a link share it.
  FluidQueue data_queue(int s) const;

 private:
  // Ranks that compute equally fast and as much.
  struct Seat {
    Place place;
    std::int64_t micro_batch = 1;
    auto operator<=>(const Seat&) const = default;
  };

  std::vector<int> tensor_group(int s, int d) const;
  std::vector<int> data_group(int s, int t) const;
  std::vector<std::vector<int>> data_groups(int s) const;
  // Rank i of one stage and rank i of the other.
  std::vector<std::vector<int>> pairs(int s, int other) const;
  double sharing(const std::vector<std::vector<int>>& groups, const cluster::Link& link) const;
  double all_reduce_time(int s, std::int64_t bytes) const;
  std::set<Seat> seats(int s) const;
  StageTimes times_of(int s);
  const BlockPrice& block_price(int s, const BlockSegment& segment, const Seat& seat);
  void share_exchanges(int s, StageTimes& times) const;
  double concurrency() const;
  void add_sends();
  void share_sends();

  const plan::Plan& plan_;
  Prices& prices_;
  std::vector<Place> places_;
  int stage_count_;
  int micro_batches_;
  std::vector<Seat> slowest_;  // by stage
  std::vector<StageTimes> times_;
};

}  // namespace tessera::cost
