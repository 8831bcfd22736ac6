#include "program/timeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::program {
namespace {

TracedInstruction compute(Op op, double begin, double end) {
  return {.op = op, .label = {}, .blocks = "[0, 2)", .group = {}, .micro_batch = 0, .time = {Seconds(begin), Seconds(end)}};
}

TracedInstruction message(Op op, int peer, double begin, double end) {
  const bool sends = op == Op::send_activation;
  return {.op = op,
          .label = {},
          .blocks = sends ? "[2, 2)" : "[2, 4)",
          .group = {},
          .micro_batch = 0,
          .peer = peer,
          .time = {Seconds(begin), Seconds(end)}};
}

TracedInstruction reduce(double begin, double end) {
  return {.op = Op::reduce_norm, .label = {}, .blocks = {}, .group = "world", .time = {Seconds(begin), Seconds(end)}};
}

// Rank 0 computes for four seconds and sends; rank 1 has waited since its first second for that, and computes until the ninth; then both
// reduce, for half a second.
TracedStep two_ranks() {
  TracedStep step;
  TracedRank& first = step[0];
  first.step = {Seconds(0), Seconds(10)};
  first.instructions = {{0, compute(Op::forward, 0, 4)}, {1, message(Op::send_activation, 1, 4, 4.25)}, {2, reduce(5, 9.5)}};
  TracedRank& second = step[1];
  second.step = {Seconds(0), Seconds(10)};
  second.instructions = {{0, message(Op::receive_activation, 0, 1, 5)}, {1, compute(Op::forward, 5, 9)}, {2, reduce(9, 9.5)}};
  second.work = {{"samples", {Seconds(0), Seconds(0.5)}}};
  return step;
}

TEST(Timeline, TransfersBeginWhenAllHaveComeAndMessagesEndWhenReceived) {
  const auto transfers = transfers_of(two_ranks());
  for (const auto& key : {InstructionKey{0, 1}, InstructionKey{1, 0}}) {
    EXPECT_EQ(transfers.at(key).begin, Seconds(4));
    EXPECT_EQ(transfers.at(key).end, Seconds(5));
  }
  EXPECT_EQ(transfers.at({0, 2}).begin, Seconds(9));
  EXPECT_EQ(transfers.at({1, 2}).begin, Seconds(9));
}

TEST(Timeline, WaitingIsExposedOnlyWhileSomethingIsTransferred) {
  const StepFigures figures = figures_of(two_ranks());
  const RankTime& first = figures.ranks.at(0);
  EXPECT_DOUBLE_EQ(first.computing.value, 4);
  EXPECT_DOUBLE_EQ(first.exposed.value, 1.5);  // the message, and the last half second of the sum
  EXPECT_DOUBLE_EQ(first.idle.value, 4.5);
  const RankTime& second = figures.ranks.at(1);
  EXPECT_DOUBLE_EQ(second.computing.value, 4);
  EXPECT_DOUBLE_EQ(second.reading.value, 0.5);
  EXPECT_DOUBLE_EQ(second.exposed.value, 1.5);
  EXPECT_DOUBLE_EQ(second.idle.value, 4);
  EXPECT_DOUBLE_EQ(figures.mean.idle.value, 4.25);
  EXPECT_EQ(figures.length, Seconds(10));
}

TEST(Timeline, WhatGoesOnBeyondAStepCountsAtItsBeginning) {
  TracedStep step = two_ranks();
  // Rank 1 waits for its message until the fifth second; what the two exchange goes on for three seconds after the step.
  for (const int rank : {0, 1}) {
    TracedInstruction late = reduce(9.5, 13);
    late.op = Op::reduce_gradients;
    step[rank].instructions[3] = late;
  }
  const StepFigures figures = figures_of(step);
  EXPECT_DOUBLE_EQ(figures.ranks.at(1).exposed.value, 2.5 + 1 + 0.5 + 0.5);  // its message moves in the fifth second
  EXPECT_DOUBLE_EQ(figures.ranks.at(0).exposed.value, 1.5 + 0.5);
  const auto parts = within({Seconds(0), Seconds(10)}, {Seconds(9.5), Seconds(13)});
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].end, Seconds(3));
  EXPECT_EQ(parts[1].begin, Seconds(9.5));
  EXPECT_EQ(within({Seconds(0), Seconds(10)}, {Seconds(11), Seconds(13)}).size(), 1U);
}

TEST(Timeline, ExchangesOfAPassAreExposed) {
  TracedStep step = two_ranks();
  step[0].instructions[0].exchanges = {{Seconds(1), Seconds(2)}};
  const RankTime first = figures_of(step).ranks.at(0);
  EXPECT_DOUBLE_EQ(first.computing.value, 3);
  EXPECT_DOUBLE_EQ(first.exposed.value, 2.5);
  ASSERT_EQ(first.exposures.size(), 3U);
  EXPECT_EQ(first.exposures[0].begin, Seconds(1));
  EXPECT_EQ(first.exposures[2].end, Seconds(9.5));
}

TEST(Timeline, AnOptimizersStepHasItsWorkInIt) {
  TracedStep step = two_ranks();
  step[0].instructions[3] = compute(Op::optimizer_step, 9.5, 9.75);
  step[0].instructions[4] = compute(Op::optimizer_step, 9.75, 10);
  step[0].work = {{"zero_gradients", {Seconds(4), Seconds(4.5)}}};
  const StepFigures figures = figures_of(step);
  EXPECT_DOUBLE_EQ(figures.instructions.at({0, 3}).duration.value, 0.5);
  EXPECT_DOUBLE_EQ(figures.instructions.at({0, 4}).duration.value, 0.5);
  const auto kinds = kinds_of(figures);
  const auto optimizer = std::find_if(kinds.begin(), kinds.end(), [](const KindFigures& kind) { return kind.op == Op::optimizer_step; });
  ASSERT_NE(optimizer, kinds.end());
  EXPECT_EQ(optimizer->count, 2);
  EXPECT_DOUBLE_EQ(optimizer->total.value, 1);
}

TEST(Timeline, MediansAreOfWhatAStepHas) {
  std::vector<StepFigures> steps(3, figures_of(two_ranks()));
  steps[0].instructions.erase({0, 2});  // as in the first step under a delayed exchange
  steps[1].length = Seconds(100);
  steps[2].instructions[{0, 2}].duration = Seconds(1.5);
  const StepFigures median = median_of(steps);
  EXPECT_EQ(median.length, Seconds(10));
  EXPECT_DOUBLE_EQ(median.instructions.at({0, 2}).duration.value, 1);
}

TEST(Timeline, TypicalTimesAddUp) {
  TracedStep slow = two_ranks();
  slow[0].step.end = slow[1].step.end = Seconds(30);
  const StepFigures median = median_of({figures_of(two_ranks()), figures_of(two_ranks()), figures_of(slow)});
  EXPECT_EQ(median.length, Seconds(10));
  EXPECT_NEAR((median.mean.computing + median.mean.exposed + median.mean.reading + median.mean.idle).value, 10, 1e-9);
  EXPECT_NEAR(median.ranks.at(0).computing.value, (4 + 4 + 4.0 / 3) / 3, 1e-9);
}

}  // namespace
}  // namespace tessera::program
