// Rows whose dimension grows with how often they are seen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "ps/table_file.hpp"
#include "ps/tables_helper.hpp"

namespace tessera::ps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Keys = std::vector<Key>;
using Values = std::vector<float>;
using Seen = std::vector<Impressions>;

constexpr int kDimension = 8;
const std::vector<GrowthStep> kSteps = {{.seen = 0, .dimension = 1}, {.seen = 3, .dimension = 4}, {.seen = 12, .dimension = kDimension}};

TableSpec growing(Rule rule, const Lifecycle& lifecycle, RowType type = RowType::fp32, int dimension = kDimension) {
  return {.name = "ads",
          .dimension = dimension,
          .type = type,
          .optimizer = {.rule = rule, .learning_rate = 0.1f},
          .initializer = {.kind = InitialValues::uniform, .scale = 1},
          .lifecycle = lifecycle};
}

Values pulled(Table& table, const Keys& keys, Absent absent = Absent::create) {
  Values values(keys.size() * static_cast<std::size_t>(table.spec().dimension), -7);
  table.pull(keys, values, {}, absent);
  return values;
}

std::uint64_t end_period(Table& table) {
  table.end_period();
  return table.evict(0, 1);
}

Seen drawn_impressions(Random& random, std::size_t count) {
  Seen seen(count);
  for (Impressions& one : seen) one = {.shows = static_cast<float>(random.below(3)), .clicks = 0};
  return seen;
}

// What is known of a row by the rules alone. Shows are halved from period to period, so their sums are exact.
struct Known {
  float shows = 0;
  std::uint32_t seen = 0;
  std::size_t dimension = 1;
};

TEST(Growth, ATableIsOneOfFullDimensionWhoseGradientsAndValuesAreMasked) {
  for (const Rule rule : {Rule::sgd, Rule::adagrad, Rule::adam}) {
    const Lifecycle all{.decay = 0.5f, .eviction = {.unseen = 2}};
    Lifecycle life = all;
    life.growth = kSteps;
    Table table(growing(rule, life)), full(growing(rule, all));
    std::map<Key, Known> known;
    Random random(7);
    std::uint32_t period = 0;
    std::uint64_t evicted = 0;
    const auto masked = [&](const Keys& keys, Values values) {
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const auto row = known.find(keys[i]);
        const std::size_t dimension = row == known.end() ? 1 : row->second.dimension;
        std::fill(values.begin() + static_cast<std::ptrdiff_t>(i * kDimension + dimension),
                  values.begin() + static_cast<std::ptrdiff_t>((i + 1) * kDimension), 0.0f);
      }
      return values;
    };
    for (int step = 0; step < 200; ++step) {
      Drawn drawn = batch(random, 1 + random.below(1500), kDimension, 3000);
      const Seen seen = drawn_impressions(random, drawn.keys.size());
      std::vector<Ticket> tickets(drawn.keys.size());
      Values values(drawn.gradients.size());
      table.pull(drawn.keys, values, tickets);
      ASSERT_EQ(values, masked(drawn.keys, pulled(full, drawn.keys))) << "step " << step;
      if (step % 16 == 15) {
        ++period;
        const std::size_t before = known.size();
        std::erase_if(known, [&](const auto& row) { return period - row.second.seen > 2; });
        evicted += before - known.size();
        ASSERT_EQ(end_period(table), before - known.size());
        ASSERT_EQ(end_period(full), before - known.size());
      }
      if (step % 50 == 49) {
        for (std::size_t i = 0; i < 20; ++i) known.erase(drawn.keys[i]);
        ASSERT_EQ(table.erase(std::span(drawn.keys).first(20)), full.erase(std::span(drawn.keys).first(20)));
      }
      full.push(drawn.keys, masked(drawn.keys, drawn.gradients), {}, seen);
      // What stands in the gradients of values that a row has not is of no account.
      for (std::size_t i = 0; i < drawn.keys.size(); ++i) {
        const auto row = known.find(drawn.keys[i]);
        if (row == known.end() || row->second.dimension < kDimension)
          drawn.gradients[(i + 1) * kDimension - 1] = std::numeric_limits<float>::quiet_NaN();
      }
      ASSERT_EQ(table.push(drawn.keys, drawn.gradients, tickets, seen).refused, 0);
      for (std::size_t i = 0; i < drawn.keys.size(); ++i) {
        Known& row = known[drawn.keys[i]];
        for (; row.seen < period; ++row.seen) row.shows /= 2;
        row.shows += seen[i].shows;
      }
      for (const Key key : drawn.keys)
        for (const GrowthStep& one : kSteps)
          if (known[key].shows >= one.seen) known[key].dimension = std::max(known[key].dimension, static_cast<std::size_t>(one.dimension));
      ASSERT_EQ(table.size(), known.size());
    }
    std::map<std::size_t, int> rows;
    for (const auto& [key, row] : known) ++rows[row.dimension];
    for (const GrowthStep& one : kSteps) EXPECT_GT(rows[static_cast<std::size_t>(one.dimension)], 50);
    EXPECT_GT(evicted, 200u);
  }
}

TEST(Growth, NewValuesBeginAsTheInitializerSaysAndOldOnesStay) {
  for (const RowType type : {RowType::fp32, RowType::bf16}) {
    const TableSpec spec = growing(Rule::adagrad, {.growth = {{0, 2}, {3, 4}}}, type, 4);
    TableSpec plain = spec;
    plain.lifecycle.reset();
    plain.type = RowType::fp32;
    Table table(spec), whole(plain);
    const Values first = pulled(whole, {5}), none(4, 0);
    const float rounding = type == RowType::fp32 ? 0 : 0.01f;
    const Values begin = pulled(table, {5});
    EXPECT_NEAR(begin[1], first[1], rounding);
    EXPECT_EQ(begin[2], 0);
    table.push(Keys{5}, none, {}, Seen{{2, 0}});
    EXPECT_EQ(pulled(table, {5}), begin);
    table.push(Keys{5}, Values{1, 1, 1, 1}, {}, Seen{{1, 0}});
    const Values grown = pulled(table, {5});
    EXPECT_NEAR(grown[0], begin[0] - 0.1f, rounding + 1e-6f);
    EXPECT_NEAR(grown[2], first[2], rounding);
    EXPECT_NEAR(grown[3], first[3], rounding);
    // Its new values have a state as new rows have; the others go on with theirs.
    table.push(Keys{5}, Values{1, 1, 1, 1});
    const Values after = pulled(table, {5});
    EXPECT_NEAR(after[1], grown[1] - 0.1f / std::sqrt(2.0f), rounding + 1e-6f);
    EXPECT_NEAR(after[2], grown[2] - 0.1f, rounding + 1e-6f);
  }
}

TEST(Growth, TicketsOfRowsThatGrewLeadToThem) {
  Table table(growing(Rule::add, {.growth = kSteps}));
  const Keys keys = {1, 2, 3};
  std::vector<Ticket> tickets(3);
  Values values(3 * kDimension);
  const Values ones(3 * kDimension, 1);
  table.push(keys, ones);
  table.pull(keys, values, tickets);
  table.push(Keys{2}, std::span(ones).first(kDimension), {}, Seen{{20, 0}});
  const Values before = pulled(table, keys);
  table.push(Keys{9}, std::span(ones).first(kDimension));  // in the place that 2 has left
  table.push(keys, ones, tickets);
  const Values after = pulled(table, keys);
  for (std::size_t row = 0; row < 3; ++row)
    for (std::size_t i = 0; i < kDimension; ++i)
      EXPECT_EQ(after[row * kDimension + i], before[row * kDimension + i] + (i == 0 || row == 1 ? 1 : 0));
}

TEST(Growth, SlotsHaveStepsOfTheirOwn) {
  const auto key = [](std::uint64_t slot) { return slot << 48 | 9; };
  Lifecycle life{.growth = {{0, 2}, {2, 4}}, .slots = {{.slot = 1, .growth = {{0, 1}}}, {.slot = 2, .growth = {{0, 4}}}}};
  Table table(growing(Rule::add, life, RowType::fp32, 4));
  const Keys keys = {key(0), key(1), key(2), key(3)};
  const auto dimensions = [&] {
    const Values values = pulled(table, keys);
    std::vector<std::ptrdiff_t> out;
    for (std::size_t row = 0; row < keys.size(); ++row) out.push_back(4 - std::ranges::count(std::span(values).subspan(row * 4, 4), 0.0f));
    return out;
  };
  EXPECT_THAT(dimensions(), ElementsAre(2, 1, 4, 2));
  for (int push = 0; push < 2; ++push) table.push(keys, Values(16, 1));
  EXPECT_THAT(dimensions(), ElementsAre(4, 1, 4, 4));
  // Where slots alone have steps, other rows are whole.
  life.growth.clear();
  Table slots(growing(Rule::add, life, RowType::fp32, 4));
  slots.push(keys, Values(16, 1));
  EXPECT_EQ(std::ranges::count(pulled(slots, {key(0)}), 0.0f), 0);
  EXPECT_EQ(std::ranges::count(pulled(slots, {key(1)}), 0.0f), 3);
}

TEST(Growth, ShortRowsTakeLessMemory) {
  Keys keys(300'000);
  for (std::uint64_t i = 0; i < keys.size(); ++i) keys[i] = key_of(i);
  const auto bytes_of_rows = [&](const std::vector<GrowthStep>& growth) {
    Table table(growing(Rule::adagrad, {.waiting_keys = 1000, .growth = growth}, RowType::fp32, 64));
    const Values zeros(keys.size() * 64);
    table.push(keys, zeros);
    table.push(std::span(keys).first(20'000), std::span(zeros).first(20'000 * 64));
    return static_cast<double>(table.memory().rows.value) / static_cast<double>(keys.size());
  };
  EXPECT_GT(bytes_of_rows({}), 2 * 64 * 4);
  EXPECT_LT(bytes_of_rows({{0, 4}, {2, 64}}), 170);
}

// Rows on disk, and those that come from there.
TEST(Growth, ATableLargerThanMemoryDoesWhatOneInMemoryDoes) {
  for (const RowType type : {RowType::fp32, RowType::int8}) {
    const TableSpec spec = growing(Rule::adagrad, {.decay = 0.5f, .waiting_keys = 1000, .eviction = {.unseen = 3}, .growth = kSteps}, type);
    const TemporaryFolder folder;
    Table in_memory(spec), tiered(spec, TableStorage{folder.path(), least_memory(spec)});
    Random random(3);
    for (int step = 0; step < 60; ++step) {
      const Drawn drawn = batch(random, 1 + random.below(12'000), kDimension, 2 * kRows);
      const Seen seen = drawn_impressions(random, drawn.keys.size());
      Values values(drawn.gradients.size()), expected(values.size());
      std::vector<Ticket> tickets(drawn.keys.size()), others(drawn.keys.size());
      in_memory.pull(drawn.keys, expected, others);
      tiered.pull(drawn.keys, values, tickets);
      ASSERT_EQ(values, expected);
      in_memory.push(drawn.keys, drawn.gradients, others, seen);
      tiered.push(drawn.keys, drawn.gradients, tickets, seen);
      if (step % 8 != 7) continue;
      ASSERT_EQ(end_period(tiered), end_period(in_memory));
    }
    EXPECT_GT(tiered.memory().misses, 5'000u);
    EXPECT_TRUE(rows_of(tiered) == rows_of(in_memory));
  }
}

TEST(Growth, SavedTablesAreThoseOfTheMomentAndGoOnAsIfNothingHadHappened) {
  for (const Rule rule : {Rule::adagrad, Rule::adam, Rule::ftrl}) {
    const TableSpec spec = growing(rule, {.decay = 0.5f, .waiting_keys = 1000, .eviction = {.unseen = 2}, .growth = kSteps});
    const TemporaryFolder folder;
    Table table(spec);
    Random random(5);
    const auto change = [&random](Table& of, std::size_t count) {
      const Drawn drawn = batch(random, count, kDimension, 20'000);
      of.push(drawn.keys, drawn.gradients);
    };
    std::vector<std::filesystem::path> files;
    std::string last;
    for (int round = 0; round < 3; ++round) {
      for (int step = 0; step < 4; ++step) change(table, 8'000);
      end_period(table);
      const Rows at_begin = rows_of(table);
      files.push_back(folder / std::to_string(round));
      TableSave save(table, real_file_system(), files.back(), last);
      while (save.save_some(1500)) change(table, 500);
      last = save.file().id;
      Table after(spec);
      load_table(after, files);
      EXPECT_TRUE(rows_of(after) == at_begin) << "round " << round;
    }
    TableSave save(table, real_file_system(), folder / "whole");
    while (save.save_some()) {}
    Table after(spec);
    change(after, 3000);  // over rows that are there, with other dimensions
    for (const auto& [key, row] : rows_of(after)) after.erase(Keys{key});
    load_table(after, std::vector{folder / "whole"});
    for (int step = 0; step < 3; ++step) {
      const Drawn drawn = batch(random, 5000, kDimension, 20'000);
      table.push(drawn.keys, drawn.gradients);
      after.push(drawn.keys, drawn.gradients);
    }
    EXPECT_TRUE(rows_of(table) == rows_of(after));
    // A table with other steps takes the rows, which then have the next of its dimensions.
    Lifecycle other = *spec.lifecycle;
    other.growth = {{0, 2}, {1000, 8}};
    Table steps(growing(rule, other));
    load_table(steps, std::vector{folder / "whole"});
    EXPECT_GT(steps.size(), 10'000u);
    const auto dimension_of = [](const std::vector<std::byte>& stored) {
      std::uint32_t dimension;
      std::memcpy(&dimension, stored.data() + stored.size() - sizeof(Statistics) - sizeof dimension, sizeof dimension);
      return dimension;
    };
    const Rows now = rows_of(steps);
    load_table(table, std::vector{folder / "whole"});
    std::map<std::uint32_t, int> became;
    for (const auto& [key, row] : rows_of(table)) {
      if (!now.contains(key)) continue;  // it came after the save
      const std::uint32_t was = dimension_of(row);
      ASSERT_EQ(dimension_of(now.at(key)), was == 1 ? 2u : 8u);
      ASSERT_TRUE(std::equal(row.begin(), row.begin() + 4 * was, now.at(key).begin()));
      ++became[was];
    }
    EXPECT_EQ(became.size(), 3u);
  }
}

TEST(Growth, RestoredRowsTakeThePlaceOfShorterAndLongerOnes) {
  const TableSpec spec = growing(Rule::adagrad, {.growth = kSteps});
  Table from(spec), to(spec);
  const Keys keys = {1, 2, 3, 2};
  const Values gradients(4 * kDimension, 0.5f);
  from.push(keys, gradients, {}, Seen{{20, 0}, {1, 0}, {4, 0}, {0, 0}});
  to.push(keys, gradients, {}, Seen{{1, 0}, {20, 0}, {1, 0}, {0, 0}});
  std::vector<std::byte> stored(keys.size() * from.stored_row_bytes());
  from.copy_stored(keys, stored);
  to.restore(keys, stored);
  EXPECT_TRUE(rows_of(from) == rows_of(to));
  EXPECT_EQ(pulled(from, keys), pulled(to, keys));
}

TEST(Growth, SaysWhatIsWrongOfItsStepsAndOfFilesWithoutThem) {
  const auto told = [](const Lifecycle& lifecycle) {
    try {
      check(growing(Rule::sgd, lifecycle));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(told({.growth = kSteps}), "");
  EXPECT_THAT(told({.growth = {{1, 2}}}), testing::AllOf(HasSubstr("growth.seen is 1"), HasSubstr("0 of the first step")));
  EXPECT_THAT(told({.growth = {{0, 2}, {0, 4}}}), HasSubstr("growth.seen is 0"));
  EXPECT_THAT(told({.growth = {{0, 4}, {5, 4}}}), HasSubstr("growth.dimension is 4"));
  EXPECT_THAT(told({.growth = {{0, 0}}}), HasSubstr("growth.dimension is 0"));
  EXPECT_THAT(told({.slots = {{.slot = 1, .growth = {{0, 9}}}}}), HasSubstr("growth.dimension is 9"));
  const TemporaryFolder folder;
  Table table(growing(Rule::sgd, {.growth = kSteps})), other(growing(Rule::sgd, {}));
  TableSave save(table, real_file_system(), folder / "rows");
  while (save.save_some()) {}
  try {
    load_table(other, std::vector{folder / "rows"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rows of the file grow, and those of the table do not"));
  }
}

}  // namespace
}  // namespace tessera::ps
