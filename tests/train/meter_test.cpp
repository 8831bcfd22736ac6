#include "train/meter.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/clock.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

Samples samples_of(const std::vector<double>& values) {
  Samples out;
  for (const double value : values) out.add(value);
  return out;
}

TEST(Samples, MedianAndItsInterval) {
  const profile::MeasuredValue five = samples_of({5, 1, 4, 2, 3}).median();
  EXPECT_EQ(five.median, 3);
  EXPECT_EQ(five.low, 1);
  EXPECT_EQ(five.high, 5);
  // All but the first and the last of ten cover the median with 97.9 %, all but two at each end only with 89.1 %.
  const profile::MeasuredValue ten = samples_of({10, 1, 9, 2, 8, 3, 7, 4, 6, 5}).median();
  EXPECT_EQ(ten.median, 5.5);
  EXPECT_EQ(ten.low, 2);
  EXPECT_EQ(ten.high, 9);
  const profile::MeasuredValue one = samples_of({7}).median();
  EXPECT_EQ(one.low, 7);
  EXPECT_EQ(one.high, 7);
}

TEST(Samples, SettledWhereTheIntervalIsNarrow) {
  EXPECT_TRUE(samples_of({100, 101, 102, 103, 104}).settled());
  EXPECT_FALSE(samples_of({100, 101, 102, 103, 110}).settled());
  EXPECT_TRUE(samples_of({1, 2, 3, 4, 5}).settled(1000)) << "narrow beside what it stands beside";
  EXPECT_TRUE(samples_of({100, 101, 102, 103, 104, 104, 104, 103, 102, 200}).settled()) << "one sample that was disturbed";
}

// The same number of them on all ranks, though one is late.
TEST(Meter, RoundsUntilSettledOrTheBudgetIsSpent) {
  on_ranks(2, [](comm::Communicator& comm) {
    const Meter meter(comm, Seconds(0.001));
    const auto rounds = [&](Seconds budget, int settled_after, Seconds first = Seconds(0)) {
      int count = 0;
      meter.rounds(
          budget,
          [&](int round) {
            EXPECT_EQ(round, count++);
            if (round == 0) std::this_thread::sleep_for(std::chrono::duration<double>(first.value));
          },
          [&] { return count >= settled_after; });
      return count;
    };
    EXPECT_EQ(rounds(Seconds(60), 0), 5);
    EXPECT_EQ(rounds(Seconds(60), 7), 7);
    EXPECT_EQ(rounds(Seconds(60), 1000), 10);
    // The first round of rank 1 spends its budget, and in the end twice that.
    EXPECT_EQ(rounds(Seconds(comm.rank() == 0 ? 60 : 1), 1000, Seconds(comm.rank() == 0 ? 0 : 1.05)), 5);
    EXPECT_EQ(rounds(Seconds(comm.rank() == 0 ? 60 : 0.001), 1000, Seconds(comm.rank() == 0 ? 0 : 0.01)), 3);
  });
}

TEST(SpeedsOf, HostsWithinAQuarterOfEachOtherAreEqual) {
  EXPECT_TRUE(speeds_of({1.0}).empty());
  EXPECT_TRUE(speeds_of({1.17, 1.0, 1.15, 1.09}).empty());
  EXPECT_EQ(speeds_of({0.68, 1.0, 1.05, 2.1}), (std::vector<double>{3.09, 2, 2, 1}));
  EXPECT_EQ(speeds_of({1.0, 1.3}), (std::vector<double>{1.3, 1}));
}

TEST(Meter, TakesTheSlowestWorkersTime) {
  on_ranks(2, [](comm::Communicator& comm) {
    const Meter meter(comm, Seconds(1));
    const double mine = meter.time([&] { std::this_thread::sleep_for(std::chrono::milliseconds(comm.rank() == 0 ? 1 : 100)); });
    EXPECT_GE(mine, 0.1);
    EXPECT_EQ(meter.repeats(comm.rank() == 0 ? 0.5 : 0.1), 10);
    EXPECT_EQ(meter.slowest(comm.rank()), 1);
  });
}

}  // namespace
}  // namespace tessera::train
