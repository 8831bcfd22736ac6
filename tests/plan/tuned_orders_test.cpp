#include "plan/schedule/tuned_orders.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <algorithm>
#include <cmath>
#include <set>

namespace tessera::plan {
namespace {

constexpr std::int64_t kEffort = 300'000;

Orders template_of(const TimedPipeline& of) {
  Orders out;
  for (int rank = 0; rank < of.pipeline.size; ++rank)
    out.push_back(order_of(of.placement, rank, of.pipeline.size, of.micro_batches, of.pipeline.chunks));
  return out;
}

TimedPipeline equal_stages(Schedule placement, int ranks, int micro_batches, bool overlap) {
  TimedPipeline out{.placement = placement,
                    .pipeline = {ranks, is_v_shaped(placement) ? 2 : 1},
                    .micro_batches = micro_batches,
                    .steps_overlap = overlap};
  out.stages.assign(static_cast<std::size_t>(ranks * out.pipeline.chunks), {Seconds(1), Seconds(1), Seconds(1), Seconds(0)});
  out.between.assign(static_cast<std::size_t>(ranks), Seconds(0));
  return out;
}

TimedPipeline any_pipeline() {
  TimedPipeline out;
  out.placement = *rc::gen::element(Schedule::zb_h1, Schedule::zb_v, Schedule::interleaved);
  out.pipeline = {*rc::gen::inRange(2, 5), is_v_shaped(out.placement)               ? 2
                                           : out.placement == Schedule::interleaved ? *rc::gen::inRange(2, 4)
                                                                                    : 1};
  out.micro_batches = *rc::gen::inRange(1, 7);
  out.steps_overlap = *rc::gen::arbitrary<bool>();
  const auto any = [] { return Seconds(*rc::gen::inRange(1, 20)); };
  for (int s = 0; s < out.pipeline.size * out.pipeline.chunks; ++s) out.stages.push_back({any(), any(), any(), any() * 0.1});
  for (int rank = 0; rank < out.pipeline.size; ++rank) out.between.push_back(any() * 0.2);
  return out;
}

// Bytes that a rank holds at most, each pass of a chunk saving one until its weight half has run.
std::vector<std::vector<ChunkBytes>> a_byte_each(const TimedPipeline& of) {
  return {static_cast<std::size_t>(of.pipeline.size), std::vector<ChunkBytes>(static_cast<std::size_t>(of.pipeline.chunks), {1, 1})};
}

RC_GTEST_PROP(TunedOrders, HoldEveryPassOnceAndAreNoSlowerThanWhatTheyBeganWith, ()) {
  TimedPipeline of = any_pipeline();
  const Orders first = template_of(of);
  const Orders tuned = tuned_orders(of, first, kEffort);
  RC_ASSERT(tuned == tuned_orders(of, first, kEffort));
  RC_ASSERT(step_of(of, tuned) <= step_of(of, first));
  RC_ASSERT(std::isfinite(step_of(of, tuned).value));
  for (const std::vector<Slot>& order : tuned) {
    std::set<std::tuple<bool, int, int, int>> seen;
    for (const Slot& slot : order) RC_ASSERT(seen.insert({slot.forward, slot.chunk, slot.micro_batch, static_cast<int>(slot.part)}).second);
    RC_ASSERT(seen.size() == static_cast<std::size_t>(3 * of.pipeline.chunks * of.micro_batches));
  }
  // No rank is done before it has run its passes.
  double busiest = 0;
  for (int rank = 0; rank < of.pipeline.size; ++rank) {
    double busy = of.between[static_cast<std::size_t>(rank)].value;
    for (int chunk = 0; chunk < of.pipeline.chunks; ++chunk) {
      const StageTimes& times = of.stages[static_cast<std::size_t>(stage_at(of.placement, rank, chunk, of.pipeline.size))];
      busy += of.micro_batches * (times.forward + times.backward_input + times.backward_weight).value;
    }
    busiest = std::max(busiest, busy);
  }
  RC_ASSERT(step_of(of, tuned).value >= busiest * (1 - 1e-9));
}

RC_GTEST_PROP(TunedOrders, KeepToTheRoomThatThereIs, ()) {
  TimedPipeline of = any_pipeline();
  of.bytes = a_byte_each(of);
  const Orders first = template_of(of);
  for (int rank = 0; rank < of.pipeline.size; ++rank) of.room.push_back(of.pipeline.size * of.pipeline.chunks + 2);
  const Orders tuned = tuned_orders(of, first, kEffort);
  // Where even the first orders do not fit they come back as they were.
  if (std::isfinite(step_of(of, tuned).value))
    for (int rank = 0; rank < of.pipeline.size; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      RC_ASSERT(most_bytes(tuned[r], of.bytes[r]) <= of.room[r]);
    }
}

TEST(TunedOrders, FillThePipelineOfAVWithFewMicroBatches) {
  // ZB-V begins with 2 p - 1 forward passes of the first rank: with fewer micro-batches it idles, and needs not to.
  for (const bool overlap : {false, true}) {
    const TimedPipeline of = equal_stages(Schedule::zb_v, 4, 4, overlap);
    const double busy = 2 * 4 * 3;
    EXPECT_GT(step_of(of, template_of(of)).value, 1.1 * busy);
    const double tuned = step_of(of, tuned_orders(of, template_of(of), 2'000'000)).value;
    EXPECT_LE(tuned, busy + 4) << overlap;
  }
}

TEST(TunedOrders, AStepThatOverlapsTheNextIsAtLeastAsShort) {
  for (const Schedule placement : {Schedule::zb_h1, Schedule::zb_v}) {
    const TimedPipeline alone = equal_stages(placement, 4, 4, false), overlapped = equal_stages(placement, 4, 4, true);
    EXPECT_LE(step_of(overlapped, template_of(overlapped)), step_of(alone, template_of(alone)));
  }
  // 1F1B with whole backward passes: p - 1 of each pass to fill and drain, which overlapping does not change.
  const TimedPipeline plain = equal_stages(Schedule::one_f_one_b, 4, 8, false);
  EXPECT_DOUBLE_EQ(step_of(plain, template_of(plain)).value, (8 + 3) * 3.0 - 3);
}

TEST(TunedOrders, OrdersInWhichRanksWaitForEachOtherTakeForEver) {
  const TimedPipeline of = equal_stages(Schedule::zb_h1, 2, 2, false);
  Orders orders = template_of(of);
  // The first stage wants the gradient of a micro-batch that it has not yet sent on.
  std::rotate(orders[0].begin(), orders[0].begin() + 2, orders[0].begin() + 3);
  EXPECT_FALSE(std::isfinite(step_of(of, orders).value));
}

}  // namespace
}  // namespace tessera::plan
