#include "plan/schedule/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <algorithm>
#include <map>

namespace tessera::plan {
namespace {

constexpr Schedule kAll[] = {Schedule::one_f_one_b, Schedule::gpipe, Schedule::interleaved, Schedule::zb_h1,
                             Schedule::zb_h2,       Schedule::zb_v,  Schedule::dualpipe_v};

int chunks_under(Schedule schedule, int interleaved) {
  return is_v_shaped(schedule) ? 2 : schedule == Schedule::interleaved ? interleaved : 1;
}

// Micro-batches, once for each chunk.
std::int64_t most_in_flight(const std::vector<Slot>& order) {
  const std::vector<ChunkBytes> one(8, {1, 1});
  return most_bytes(order, one);
}

std::int64_t most(Schedule schedule, int pipeline_rank, int pipeline_size, int micro_batches, int chunks = 1) {
  return most_in_flight(order_of(schedule, pipeline_rank, pipeline_size, micro_batches, chunks));
}

// Runs all pipeline ranks slot by slot; every slot waits for what it needs. False: they wait for each other.
bool completes(Schedule schedule, int pipeline_size, int chunks, const Orders& orders) {
  const int stages = pipeline_size * chunks;
  std::map<std::tuple<int, int, int>, bool> done;  // stage, micro-batch, 0 forward, 1 input half, 2 weight half
  std::vector<std::size_t> next(orders.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int pipeline_rank = 0; pipeline_rank < pipeline_size; ++pipeline_rank)
      for (; next[pipeline_rank] < orders[pipeline_rank].size(); ++next[pipeline_rank], moved = true) {
        const Slot& slot = orders[pipeline_rank][next[pipeline_rank]];
        const int stage = stage_at(schedule, pipeline_rank, slot.chunk, pipeline_size);
        const int m = slot.micro_batch;
        if (slot.forward) {
          if (stage > 0 && !done[{stage - 1, m, 0}]) break;
          done[{stage, m, 0}] = true;
          continue;
        }
        if (slot.part != Backward::weight) {
          if (!done[{stage, m, 0}] || (stage + 1 < stages && !done[{stage + 1, m, 1}])) break;
          done[{stage, m, 1}] = true;
        }
        if (slot.part != Backward::input) {
          if (!done[{stage, m, 1}]) break;
          done[{stage, m, 2}] = true;
        }
      }
  }
  for (int stage = 0; stage < stages; ++stage)
    for (int m = 0; m < static_cast<int>(done.size()); ++m)
      if (done.contains({stage, m, 0}) && !done[{stage, m, 2}]) return false;
  for (std::size_t pipeline_rank = 0; pipeline_rank < orders.size(); ++pipeline_rank)
    if (next[pipeline_rank] != orders[pipeline_rank].size()) return false;
  return true;
}

RC_GTEST_PROP(Schedules, EveryPassOfEveryMicroBatchComesOnceAndNoPlaceWaitsForEver, ()) {
  const Schedule schedule = *rc::gen::elementOf(std::vector<Schedule>(std::begin(kAll), std::end(kAll)));
  const int pipeline_size = *rc::gen::inRange(1, 10);
  const int micro_batches = *rc::gen::inRange(1, 40);
  const int chunks = chunks_under(schedule, *rc::gen::inRange(1, 5));
  Orders orders;
  for (int pipeline_rank = 0; pipeline_rank < pipeline_size; ++pipeline_rank) {
    orders.push_back(order_of(schedule, pipeline_rank, pipeline_size, micro_batches, chunks));
    std::map<std::tuple<int, int, int>, int> count;
    for (const Slot& slot : orders.back()) {
      if (slot.forward) ++count[{slot.chunk, slot.micro_batch, 0}];
      if (!slot.forward && slot.part != Backward::weight) ++count[{slot.chunk, slot.micro_batch, 1}];
      if (!slot.forward && slot.part != Backward::input) ++count[{slot.chunk, slot.micro_batch, 2}];
    }
    RC_ASSERT(count.size() == static_cast<std::size_t>(3 * chunks * micro_batches));
    for (const auto& [pass, times] : count) RC_ASSERT(times == 1);
  }
  RC_ASSERT(completes(schedule, pipeline_size, chunks, orders));
}

TEST(Schedules, HoldWhatTheirPapersSay) {
  for (const int pipeline_size : {1, 2, 4, 8})
    for (int pipeline_rank = 0; pipeline_rank < pipeline_size; ++pipeline_rank) {
      const int many = 5 * pipeline_size;
      EXPECT_EQ(most(Schedule::gpipe, pipeline_rank, pipeline_size, many), many);
      EXPECT_EQ(most(Schedule::one_f_one_b, pipeline_rank, pipeline_size, many), pipeline_size - pipeline_rank);
      // Qi et al. 2023, section 2: p and 2p - 1 micro-batches, the same on every pipeline rank.
      EXPECT_EQ(most(Schedule::zb_h1, pipeline_rank, pipeline_size, many), pipeline_size);
      EXPECT_EQ(most(Schedule::zb_h2, pipeline_rank, pipeline_size, many), 2 * pipeline_size - 1);
      // Two chunks a pipeline rank: 2p of them are the p micro-batches of 1F1B; DualPipe's table says one more.
      EXPECT_EQ(most(Schedule::zb_v, pipeline_rank, pipeline_size, many), 2 * pipeline_size);
      EXPECT_EQ(most(Schedule::dualpipe_v, pipeline_rank, pipeline_size, many), 2 * pipeline_size + 1);
    }
  // Narayanan et al. 2021: the first pipeline rank holds (1 + (p - 1) / (p v)) times what 1F1B holds.
  EXPECT_EQ(most(Schedule::interleaved, 0, 8, 32, 3), 8 * 3 + 7);
  for (const Schedule schedule : kAll) EXPECT_LE(most(schedule, 0, 4, 2, 1), 4) << name_of(schedule);
}

TEST(Schedules, TheWeightHalfKeepsOnlyWhatItNeeds) {
  const auto order = order_of(Schedule::zb_h1, 3, 4, 16);
  // On the last pipeline rank three weight halves wait while one micro-batch is whole.
  const ChunkBytes bytes{10, 4};
  EXPECT_EQ(most_bytes(order, std::span(&bytes, 1)), 3 * 4 + 10);
  const ChunkBytes with_gradients{10, 15};
  EXPECT_EQ(most_bytes(order, std::span(&with_gradients, 1)), 4 * 15);
  const ChunkBytes all{10, 10};
  EXPECT_EQ(most_bytes(order, std::span(&all, 1)), 10 * most_in_flight(order));
}

TEST(Schedules, DualPipeVOverlapsForwardWithBackwardOfTheOtherChunk) {
  int pairs = 0;
  const auto order = order_of(Schedule::dualpipe_v, 1, 4, 20);
  for (std::size_t i = 0; i < order.size(); ++i)
    if (order[i].with_next) {
      ++pairs;
      EXPECT_TRUE(order[i].forward);
      EXPECT_FALSE(order[i + 1].forward);
      EXPECT_NE(order[i].chunk, order[i + 1].chunk);
    }
  EXPECT_EQ(pairs, 2 * (20 - 2 * 4 + 2) + 2);
}

TEST(Placement, FollowsTheV) {
  EXPECT_EQ(stage_at(Schedule::zb_v, 0, 1, 4), 7);
  EXPECT_EQ(stage_at(Schedule::dualpipe_v, 3, 1, 4), 4);
  EXPECT_EQ(stage_at(Schedule::interleaved, 3, 2, 4), 11);
}

std::string file_of(const std::string& ranks, const std::string& placement = "plain", int micro_batches = 2) {
  return text("format: tessera-schedule\nversion: 1\nplacement: ", placement, "\nmicro_batches: ", micro_batches, "\nranks:\n", ranks);
}

ScheduleFile read(const std::string& yaml) { return read_schedule(ConfigNode::parse(yaml, "mine.yaml")); }

void expect_refused(const std::string& yaml, int line, const std::string& part) {
  try {
    read(yaml);
    ADD_FAILURE() << "it was read:\n" << yaml;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(part));
    EXPECT_EQ(error.where().line, line) << error.what();
    EXPECT_EQ(error.where().file, "mine.yaml");
  }
}

TEST(ScheduleFile, ABackwardPassWithAWeightHalfIsTheInputHalf) {
  const ScheduleFile file = read(file_of("  - [F0.0, F0.1, B0.0, B0.1, W0.1]\n"));
  const Orders expected = {{{true, 0}, {true, 1}, {false, 0}, {false, 1, 0, Backward::input}, {false, 1, 0, Backward::weight}}};
  EXPECT_EQ(file.orders, expected);
}

RC_GTEST_PROP(ScheduleFile, EveryScheduleRoundTrips, ()) {
  const Schedule schedule = *rc::gen::elementOf(std::vector<Schedule>(std::begin(kAll), std::end(kAll)));
  const int pipeline_size = *rc::gen::inRange(1, 6);
  const int micro_batches = *rc::gen::inRange(1, 12);
  const int chunks = chunks_under(schedule, *rc::gen::inRange(2, 4));
  ScheduleFile file{is_v_shaped(schedule) ? Schedule::zb_v : chunks > 1 ? Schedule::interleaved : Schedule::one_f_one_b, micro_batches, {}};
  for (int pipeline_rank = 0; pipeline_rank < pipeline_size; ++pipeline_rank)
    file.orders.push_back(order_of(schedule, pipeline_rank, pipeline_size, micro_batches, chunks));
  const ScheduleFile again = read(to_yaml(file));
  RC_ASSERT(again.orders == file.orders);
  RC_ASSERT(again.placement == file.placement);
  RC_ASSERT(again.micro_batches == micro_batches);
}

TEST(ScheduleFile, IsReadStrictly) {
  expect_refused(file_of("  - [F0.0, F0.1, B0.0, X0.1]\n"), 6, "found X0.1");
  expect_refused(file_of("  - [F0.0, F0.1, B0.0, B0]\n"), 6, "CHUNK.MICRO_BATCH");
  expect_refused(file_of("  - [F0.0, F0.1, B0.0, B0.1x]\n"), 6, "found B0.1x");
  expect_refused(file_of("  - [F0.0, F0.1, B0.0, B0.99999999999]\n"), 6, "found B0.99999999999");
  expect_refused(file_of("  - [F0.0, F0.1, B0.0, B0.-1]\n"), 6, "found B0.-1");
  expect_refused(file_of("  - [F0.0, F0.1, B0.0, B0.1]\n  - [F0.0, F0.1, B0.0]\n"), 7, "it has 3 slots");
  expect_refused(file_of("  - [F0.0, F0.1, B0.0, B0.0]\n"), 6, "B0.0 comes twice");
  expect_refused(file_of("  - [F0.0, B0.1, F0.1, B0.0]\n"), 6, "B0.1 comes before what it needs");
  expect_refused(file_of("  - [F0.0, W0.0, B0.0, F0.1, B0.1]\n"), 6, "W0.0 comes before what it needs");
  expect_refused(file_of("  - [F0.0, F0.1, B0.0, B0.2]\n"), 6, "has 2");
  expect_refused(file_of("  - [F0.0, F1.0, B1.0, B0.0]\n", "plain", 1), 6, "it has 1");
  expect_refused(file_of("  - [F0.0+, F0.1, B0.0, B0.1]\n"), 6, "can only overlap");
  // On the one rank of this V the second chunk needs the first one's forward pass.
  expect_refused(file_of("  - [F1.0, F0.0, B1.0, B0.0]\n", "v", 1), 6, "F1.0 comes before what it needs");
  expect_refused(file_of("  - [F0.0, B0.0]\n", "w", 1), 3, "found");
  expect_refused(file_of("  []\n"), 6, "nothing to do");
  expect_refused("format: tessera-plan\nversion: 1\nplacement: plain\nmicro_batches: 1\nranks: [[F0.0, B0.0]]\n", 1, "no schedule");
  expect_refused(file_of("  - [F0.0, B0.0]\n", "plain", 1) + "rank: 1\n", 7, "rank");
}

TEST(Schedule, CountsInFlightMicroBatchesWithoutWritingTheOrderDown) {
  for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::gpipe, Schedule::zb_h1, Schedule::zb_h2})
    for (int size = 1; size <= 6; ++size)
      for (int rank = 0; rank < size; ++rank)
        for (int micro_batches = 1; micro_batches <= 16; ++micro_batches)
          EXPECT_EQ(in_flight(schedule, rank, size, micro_batches), most_in_flight(order_of(schedule, rank, size, micro_batches)))
              << name_of(schedule) << ", rank " << rank << " of " << size << ", " << micro_batches << " micro-batches";
}

}  // namespace
}  // namespace tessera::plan
