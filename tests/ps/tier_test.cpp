#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "ps/ps.hpp"
#include "ps/tables_helper.hpp"

namespace tessera::ps {
namespace {

using testing::HasSubstr;

class Pair {
 public:
  explicit Pair(const TableSpec& spec) : in_memory(spec), tiered(spec, TableStorage{folder.path(), least_memory(spec)}) {}

  // Pulls, and pushes by tickets, in both.
  void step(const Drawn& batch, Absent absent = Absent::create) {
    std::vector<float> values(batch.gradients.size()), expected(values.size());
    std::vector<Ticket> tickets(batch.keys.size()), others(batch.keys.size());
    in_memory.pull(batch.keys, expected, others, absent);
    tiered.pull(batch.keys, values, tickets, absent);
    ASSERT_EQ(values, expected);
    in_memory.push(batch.keys, batch.gradients, others);
    tiered.push(batch.keys, batch.gradients, tickets);
  }
  void push(const Drawn& batch) {
    in_memory.push(batch.keys, batch.gradients);
    tiered.push(batch.keys, batch.gradients);
  }

  TemporaryFolder folder;
  Table in_memory, tiered;
};

TEST(Tier, RowsOfEveryKindReturnFromTheDiskAsTheyWere) {
  for (const RowType type : {RowType::fp32, RowType::bf16, RowType::int8})
    for (const OptimizerSpec optimizer :
         {OptimizerSpec{.rule = Rule::add}, OptimizerSpec{.rule = Rule::sgd}, OptimizerSpec{.rule = Rule::adagrad},
          OptimizerSpec{.rule = Rule::adagrad, .row_moment = true}, OptimizerSpec{.rule = Rule::adam},
          OptimizerSpec{.rule = Rule::adam, .row_moment = true}, OptimizerSpec{.rule = Rule::ftrl}}) {
      Pair tables({.name = "ads", .dimension = 3, .type = type, .optimizer = optimizer});
      Random random(5);
      Drawn every;
      for (std::uint64_t row = 0; row < kRows; ++row) every.keys.push_back(key_of(row));
      every.gradients.assign(every.keys.size() * 3, 0.25f);
      tables.push(every);
      for (int step = 0; step < 3; ++step) tables.step(batch(random, 20'000, 3));
      EXPECT_GT(tables.tiered.memory().disk.value, 0);
      EXPECT_GT(tables.tiered.memory().misses, 20'000u);
      EXPECT_EQ(tables.tiered.size(), tables.in_memory.size());
      EXPECT_TRUE(rows_of(tables.tiered) == rows_of(tables.in_memory));
    }
}

TEST(Tier, KeepsWithinItsMemory) {
  const TableSpec spec{.name = "ads", .dimension = 4};
  const TemporaryFolder folder;
  const Bytes limit(std::int64_t{8} << 20);
  Table table(spec, TableStorage{folder.path(), limit});
  std::vector<Key> keys(5000);
  const std::vector<float> gradients(keys.size() * 4, 1);
  for (std::uint64_t row = 0; row < 1'000'000;) {
    for (Key& key : keys) key = key_of(row++);
    table.push(keys, gradients);
    const TableMemory memory = table.memory();
    ASSERT_LE((memory.index + memory.rows).value, limit.value) << row << " rows";
  }
  EXPECT_EQ(table.size(), 1'000'000u);
  // Every row is on disk at most about twice.
  EXPECT_LT(table.memory().disk.value, 1'000'000 * std::int64_t{12 + 32} * 2);
}

TEST(Tier, AnyOrderOfCallsDoesWhatATableInMemoryDoes) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    Pair tables({.name = "ads", .dimension = 4, .type = seed == 2 ? RowType::int8 : RowType::fp32});
    Random random(seed);
    for (int step = 0; step < 120; ++step) {
      const Drawn drawn = batch(random, 1 + random.below(10'000), 4, kRows * 2);
      switch (random.below(8)) {
        case 0: {
          const auto some = std::span(drawn.keys).first(drawn.keys.size() / 4);
          EXPECT_EQ(tables.tiered.erase(some), tables.in_memory.erase(some));
          break;
        }
        case 1: tables.step(drawn, Absent::zeros); break;
        case 2: {
          const std::vector<std::byte> stored(drawn.keys.size() * tables.tiered.stored_row_bytes(), std::byte{3});
          tables.tiered.restore(drawn.keys, stored);
          tables.in_memory.restore(drawn.keys, stored);
          break;
        }
        case 3: tables.push(drawn); break;
        default: tables.step(drawn);
      }
      ASSERT_EQ(tables.tiered.size(), tables.in_memory.size());
    }
    EXPECT_GT(tables.tiered.memory().misses, 10'000u);
    EXPECT_TRUE(rows_of(tables.tiered) == rows_of(tables.in_memory));
  }
}

TEST(Tier, AFullDiskIsSaidAndLosesNothing) {
  Pair tables({.name = "ads", .dimension = 4});
  std::uint64_t row = 0;
  const auto next = [&row] {
    Drawn batch;
    for (int i = 0; i < 2000; ++i) batch.keys.push_back(key_of(row++));
    batch.gradients.assign(batch.keys.size() * 4, 0.5f);
    return batch;
  };
  std::string told;
  {
    const FullDisk full(2 << 20);
    for (; told.empty() && row < 1'000'000;) {
      const Drawn batch = next();
      try {
        tables.tiered.push(batch.keys, batch.gradients);
        tables.in_memory.push(batch.keys, batch.gradients);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
        told = error.what();
        row -= 2000;
      }
    }
    EXPECT_THAT(told, testing::AllOf(HasSubstr("table ads cannot move rows to disk"), HasSubstr(tables.folder.path().string()),
                                     HasSubstr("none is lost")));
    // Rows in memory, as those that came last are, are served as before.
    row -= 2000;
    tables.step(next());
    EXPECT_TRUE(rows_of(tables.tiered) == rows_of(tables.in_memory));
  }
  for (int step = 0; step < 50; ++step) tables.push(next());
  EXPECT_TRUE(rows_of(tables.tiered) == rows_of(tables.in_memory));
}

TEST(Tier, SaysWhatOfItsStorageIsWrong) {
  const TemporaryFolder folder;
  const auto told = [](const TableStorage& storage) {
    try {
      Table table({.name = "ads", .dimension = 4}, storage);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(told({folder.path(), Bytes(1000)}), testing::AllOf(HasSubstr("table ads: the memory limit is 1000 B"), HasSubstr("will do")));
  EXPECT_THAT(told({folder.write("file", "") / "below", Bytes(1 << 30)}), HasSubstr("file/below"));
}

}  // namespace
}  // namespace tessera::ps
