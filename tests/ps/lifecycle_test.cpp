// Rows of one table that come, count, decay and go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "ps/table_file.hpp"
#include "ps/tables_helper.hpp"

namespace tessera::ps {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::FloatEq;
using testing::HasSubstr;

using Keys = std::vector<Key>;
using Values = std::vector<float>;
using Seen = std::vector<Impressions>;

TableSpec adding(const Lifecycle& lifecycle, int dimension = 1) {
  return {.name = "ads",
          .dimension = dimension,
          .optimizer = {.rule = Rule::add},
          .initializer = {.kind = InitialValues::uniform, .scale = 1},
          .lifecycle = lifecycle};
}

Statistics statistics_of(const Table& table, Key key) {
  Statistics found{.shows = -1};
  table.for_each([&](Key one, std::span<const std::byte> stored) {
    if (one == key) found = table.statistics(stored);
  });
  return found;
}

Values pulled(Table& table, const Keys& keys, Absent absent = Absent::create) {
  Values values(keys.size() * static_cast<std::size_t>(table.spec().dimension), -7);
  table.pull(keys, values, {}, absent);
  return values;
}

// What a key's row begins with.
float first_value(const TableSpec& spec, Key key) {
  TableSpec plain = spec;
  plain.lifecycle.reset();
  Table table(plain);
  return pulled(table, {key}).front();
}

std::uint64_t end_period(Table& table, std::uint32_t parts = 1) {
  table.end_period();
  std::uint64_t evicted = 0;
  for (std::uint32_t part = 0; part < parts; ++part) evicted += table.evict(part, parts);
  return evicted;
}

TEST(Lifecycle, ShowsAndClicksAreAddedUpAndDecayWithEachPeriod) {
  const Lifecycle lifecycle{.decay = 0.5f, .click_weight = 2, .unclicked_weight = 0.5f};
  Table table(adding(lifecycle));
  table.push(Keys{1, 2, 1}, Values{0, 0, 0}, {}, Seen{{.shows = 2, .clicks = 1}, {}, {.shows = 3, .clicks = 2}});
  table.push(Keys{1}, Values{0});  // one show
  const Statistics first = statistics_of(table, 1), second = statistics_of(table, 2);
  EXPECT_EQ(first.shows, 6);
  EXPECT_EQ(first.clicks, 3);
  EXPECT_EQ(first.seen, 0u);
  EXPECT_EQ(second.shows, 1);
  EXPECT_EQ(second.clicks, 0);
  EXPECT_EQ(score(lifecycle, first), 2 * 3 + 0.5f * 3);
  for (int period = 0; period < 3; ++period) table.end_period();
  // Rows are not touched by it: what they have decayed to is seen when they are read.
  EXPECT_EQ(statistics_of(table, 1).shows, 6);
  EXPECT_EQ(decayed(lifecycle, first, table.period()).shows, 0.75f);
  table.push(Keys{1}, Values{0}, {}, Seen{{.shows = 1, .clicks = 1}});
  const Statistics again = statistics_of(table, 1);
  EXPECT_EQ(again.shows, 1.75f);
  EXPECT_EQ(again.clicks, 3.0f / 8 + 1);
  EXPECT_EQ(again.seen, 3u);
}

TEST(Lifecycle, ImpressionsThatCannotBeAreRefusedWithTheirGradients) {
  Table table(adding({}));
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const PushResult result = table.push(Keys{1, 2, 3, 4}, Values{1, 1, 1, nan}, {}, Seen{{nan, 0}, {1, infinity}, {-1, 0}, {1, 0}});
  EXPECT_EQ(result.applied, 0);
  EXPECT_EQ(result.refused, 4);
  EXPECT_EQ(table.size(), 1u);  // a key that was seen, with a gradient that is none
  EXPECT_EQ(statistics_of(table, 4).shows, 0);
}

TEST(Lifecycle, CostsTwelveBytesARowAndNothingWithoutIt) {
  TableSpec spec = adding({}, 4);
  for (const Rule rule : {Rule::add, Rule::adagrad, Rule::adam}) {
    spec.optimizer.rule = rule;
    spec.lifecycle.reset();
    const std::size_t without = Table(spec).stored_row_bytes();
    EXPECT_EQ(without, rule == Rule::add ? 16u : rule == Rule::adagrad ? 32u : 52u);
    spec.lifecycle.emplace();
    EXPECT_EQ(Table(spec).stored_row_bytes(), without + 12);
  }
}

TEST(Lifecycle, PullsMakeNoRowsAndGiveWhatTheNextPushBeginsWith) {
  for (const RowType type : {RowType::fp32, RowType::bf16, RowType::int8}) {
    TableSpec spec = adding({}, 3);
    spec.type = type;
    Table table(spec);
    const Values first = pulled(table, {5});
    EXPECT_EQ(table.size(), 0u);
    EXPECT_THAT(pulled(table, {5}, Absent::zeros), Each(0));
    table.push(Keys{5}, Values{0, 0, 0});
    EXPECT_EQ(pulled(table, {5}), first);
    EXPECT_THAT(first, testing::Not(Each(0)));
  }
}

TEST(Lifecycle, ARowGoesWhenItWasNotSeenForThatManyPeriods) {
  Table table(adding({.eviction = {.unseen = 2}}));
  table.push(Keys{1, 2}, Values{1, 1});
  EXPECT_EQ(end_period(table), 0u);  // it was seen in the period that ended
  EXPECT_EQ(end_period(table), 0u);
  table.push(Keys{2}, Values{1});
  EXPECT_EQ(end_period(table), 1u);  // 1 was not seen in the last two
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(end_period(table), 0u);
  EXPECT_EQ(end_period(table), 1u);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.lifecycle_counts().evicted, 2u);
  // One that comes again begins anew.
  table.push(Keys{1}, Values{1});
  EXPECT_EQ(pulled(table, {1}).front(), first_value(table.spec(), 1) + 1);
  EXPECT_EQ(statistics_of(table, 1).shows, 1);
}

TEST(Lifecycle, ARowGoesWhenItsScoreHasDecayedBelowTheThreshold) {
  Table table(adding({.decay = 0.5f, .click_weight = 1, .unclicked_weight = 0.25f, .eviction = {.below = 0.5f}}));
  // Scores of 1, 1.75, 4 and, at the edge, 2.
  table.push(Keys{1, 2, 3, 4}, Values{0, 0, 0, 0}, {}, Seen{{4, 0}, {4, 1}, {16, 0}, {2, 2}});
  EXPECT_EQ(end_period(table), 0u);  // 0.5 is not below
  EXPECT_EQ(end_period(table), 2u);  // 0.25 and 0.4375 are; 1 and 0.5 are not
  EXPECT_EQ(statistics_of(table, 3).shows, 16);
  EXPECT_EQ(statistics_of(table, 4).clicks, 2);
  EXPECT_EQ(end_period(table), 1u);
  EXPECT_EQ(end_period(table), 1u);
  EXPECT_EQ(table.size(), 0u);
}

TEST(Lifecycle, PartsOfATableAreTheWholeAndTicketsOfRowsThatWentLeadNowhere) {
  const TableSpec spec = adding({.eviction = {.unseen = 1}});
  Table whole(spec), parts(spec);
  Keys keys(50'000), kept;
  for (std::uint64_t i = 0; i < keys.size(); ++i) keys[i] = key_of(i);
  for (std::uint64_t i = 0; i < keys.size(); i += 3) kept.push_back(keys[i]);
  const Values ones(keys.size(), 1);
  std::vector<Ticket> tickets(keys.size());
  Values values(keys.size());
  for (Table* const table : {&whole, &parts}) {
    table->push(keys, ones);
    end_period(*table);
    table->push(kept, std::span(ones).first(kept.size()));
  }
  parts.pull(keys, values, tickets);
  EXPECT_EQ(end_period(whole), keys.size() - kept.size());
  EXPECT_EQ(end_period(parts, 7), keys.size() - kept.size());
  EXPECT_TRUE(rows_of(whole) == rows_of(parts));
  EXPECT_EQ(parts.size(), kept.size());
  // Rows of new keys take the places of those that went.
  Keys others(keys.size());
  for (std::uint64_t i = 0; i < others.size(); ++i) others[i] = key_of(1'000'000 + i);
  for (Table* const table : {&whole, &parts}) table->push(others, ones);
  whole.push(keys, ones);
  parts.push(keys, ones, tickets);
  EXPECT_TRUE(rows_of(whole) == rows_of(parts));
}

TEST(Lifecycle, AKeyGetsARowOnceItWasSeenOftenEnough) {
  const TableSpec spec = adding({.admission = {.after = 3}});
  Table table(spec);
  for (int push = 0; push < 2; ++push) {
    EXPECT_THAT(pulled(table, {1}), ElementsAre(0));
    const PushResult result = table.push(Keys{1}, Values{5});
    EXPECT_EQ(result.applied, 0);
    EXPECT_EQ(result.refused, 0);
    EXPECT_EQ(table.size(), 0u);
  }
  EXPECT_EQ(table.push(Keys{1}, Values{5}).applied, 1);
  EXPECT_THAT(pulled(table, {1}), ElementsAre(first_value(spec, 1) + 5));
  EXPECT_EQ(statistics_of(table, 1).shows, 1);
  // In one push: by its shows, or by standing there several times, of which those count from the third on.
  EXPECT_EQ(
      table.push(Keys{2, 3, 4, 3, 3, 3}, Values{1, 1, 1, 1, 1, 1}, {}, Seen{{3, 0}, {1, 0}, {2.9f, 0}, {0, 0}, {1, 0}, {1, 0}}).applied, 3);
  EXPECT_THAT(pulled(table, {2, 3, 4}), ElementsAre(first_value(spec, 2) + 1, FloatEq(first_value(spec, 3) + 2), 0));
  EXPECT_EQ(table.lifecycle_counts().admitted, 3u);
  EXPECT_EQ(table.lifecycle_counts().held_back, 5u);
  // A row that went is counted anew.
  table.erase(Keys{2});
  EXPECT_EQ(table.push(Keys{2}, Values{1}).applied, 0);
}

TEST(Lifecycle, AKeyThatIsNotSeenForLongIsCountedAnew) {
  Table table(adding({.admission = {.after = 2}, .forget_after = 3}));
  table.push(Keys{1, 2}, Values{1, 1});
  for (int period = 0; period < 3; ++period) table.end_period();  // less than six periods ago
  EXPECT_EQ(table.push(Keys{1}, Values{1}).applied, 1);
  for (int period = 0; period < 3; ++period) table.end_period();
  EXPECT_EQ(table.push(Keys{2}, Values{1}).applied, 0);
  EXPECT_EQ(table.push(Keys{2}, Values{1}).applied, 1);
}

TEST(Lifecycle, ChanceAdmitsTheShareThatWasAskedAndTheSameKeysInTwoTables) {
  const TableSpec spec = adding({.admission = {.probability = 0.2f}});
  Table one(spec), other(spec);
  Keys keys(20'000);
  std::iota(keys.begin(), keys.end(), 1);
  const Values ones(keys.size(), 1);
  one.push(keys, ones);
  for (std::size_t begin = 0; begin < keys.size(); begin += 100) {
    other.set_push_count(0);
    other.push(std::span(keys).subspan(begin, 100), std::span(ones).first(100));
  }
  EXPECT_NEAR(static_cast<double>(one.size()), 4000, 200);
  EXPECT_TRUE(rows_of(one) == rows_of(other));
  EXPECT_THAT(pulled(one, {1'000'000}), ElementsAre(0));
  // Each push draws anew.
  one.push(keys, ones);
  EXPECT_NEAR(static_cast<double>(one.size()), 4000 + 0.2 * 16'000, 300);
  Table certain(adding({.admission = {.probability = 1.0f}}));
  EXPECT_NE(pulled(certain, {1}).front(), 0);
  EXPECT_EQ(certain.push(keys, ones).applied, 20'000);
}

TEST(Lifecycle, ASlotsKeysFollowRulesOfTheirOwn) {
  const auto key = [](std::uint64_t slot, std::uint64_t id) { return slot << 48 | id; };
  TableSpec spec = adding({.admission = {.after = 2},
                           .eviction = {.unseen = 1},
                           .slots = {{.slot = 3, .admission = Admission{.after = 1}, .eviction = Eviction{}},
                                     {.slot = 1, .learning_rate_scale = 0.25f, .admission = Admission{.after = 1}}}});
  spec.optimizer = {.rule = Rule::sgd, .learning_rate = 1};
  Table table(spec);
  const Keys keys = {key(0, 9), key(1, 9), key(2, 9), key(3, 9), key(4, 9), key(65535, 9)};
  EXPECT_EQ(table.push(keys, Values(6, 1)).applied, 2);
  EXPECT_EQ(table.push(keys, Values(6, 1)).applied, 6);
  const auto moved = [&](std::size_t i) { return pulled(table, {keys[i]}).front() - first_value(spec, keys[i]); };
  EXPECT_FLOAT_EQ(moved(0), -1);
  EXPECT_FLOAT_EQ(moved(1), -0.5f);
  EXPECT_FLOAT_EQ(moved(3), -2);
  end_period(table);
  EXPECT_EQ(end_period(table), 5u);
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(statistics_of(table, key(3, 9)).shows, 2);
}

// Any order of calls: rows on disk come, decay and go as those in memory do.
TEST(Lifecycle, ATableLargerThanMemoryDoesWhatOneInMemoryDoes) {
  for (const std::uint64_t seed : {1, 2}) {
    TableSpec spec = adding(
        {.decay = 0.7f, .admission = {.after = seed == 1 ? 2 : 1}, .waiting_keys = 200'000, .eviction = {.unseen = 3, .below = 0.1f}}, 4);
    const TemporaryFolder folder;
    const Bytes limit = least_memory(spec);
    Table in_memory(spec), tiered(spec, TableStorage{folder.path(), Bytes(limit.value + 600'000)});
    Random random(seed);
    std::uint64_t evicted = 0;
    for (int step = 0; step < 100; ++step) {
      Drawn drawn = batch(random, 1 + random.below(12'000), 4, 2 * kRows);
      Seen seen(drawn.keys.size());
      for (Impressions& one : seen) one = {.shows = static_cast<float>(random.below(3)), .clicks = static_cast<float>(random.below(2))};
      Values values(drawn.gradients.size()), expected(values.size());
      std::vector<Ticket> tickets(drawn.keys.size()), others(drawn.keys.size());
      in_memory.pull(drawn.keys, expected, others);
      tiered.pull(drawn.keys, values, tickets);
      ASSERT_EQ(values, expected);
      if (step % 8 == 7) {
        const std::uint64_t of_memory = end_period(in_memory, 5);
        evicted += of_memory;
        ASSERT_EQ(end_period(tiered, 5), of_memory);
      }
      in_memory.push(drawn.keys, drawn.gradients, others, seen);
      tiered.push(drawn.keys, drawn.gradients, tickets, seen);
      ASSERT_EQ(tiered.size(), in_memory.size());
    }
    EXPECT_GT(tiered.memory().misses, 5'000u);
    EXPECT_GT(evicted, 10'000u);
    EXPECT_TRUE(rows_of(tiered) == rows_of(in_memory));
  }
}

TEST(Lifecycle, SavedTablesAreThoseOfTheMomentAndGoOnAsIfNothingHadHappened) {
  for (const bool tiered : {false, true}) {
    const TableSpec spec = adding({.admission = {.after = 2}, .waiting_keys = 100'000, .forget_after = 2, .eviction = {.unseen = 1}}, 4);
    const TemporaryFolder folder;
    Table table(spec, tiered ? std::optional(TableStorage{folder.path(), Bytes(least_memory(spec).value + 300'000)}) : std::nullopt);
    Random random(5);
    const auto change = [&random](Table& of, std::size_t count) {
      const Drawn drawn = batch(random, count, 4);
      of.push(drawn.keys, drawn.gradients);
    };
    std::vector<std::filesystem::path> files;
    std::string last;
    for (int round = 0; round < 4; ++round) {
      for (int step = 0; step < 6; ++step) change(table, 20'000);
      end_period(table, 3);
      const Rows at_begin = rows_of(table);
      const std::vector<std::byte> waiting(table.waiting().begin(), table.waiting().end());
      const std::uint32_t period = table.period();
      files.push_back(folder / std::to_string(round));
      TableSave save(table, real_file_system(), files.back(), last);
      std::uint32_t part = 0;
      table.end_period();
      while (save.save_some(1500)) {
        change(table, 500);
        if (part < 20) table.evict(part++, 20);
      }
      last = save.file().id;
      EXPECT_EQ(save.file().rows, round == 0 ? SnapshotRows::all : SnapshotRows::changed);
      Table after(spec);
      load_table(after, files);
      EXPECT_TRUE(rows_of(after) == at_begin) << "round " << round;
      EXPECT_EQ(after.period(), period);
      EXPECT_TRUE(std::ranges::equal(after.waiting(), waiting));
    }
    EXPECT_GT(table.lifecycle_counts().evicted, 10'000u);
    // What was saved last goes on as the table does.
    const TableFile base = [&] {
      TableSave save(table, real_file_system(), folder / "whole");
      while (save.save_some()) {}
      return save.file();
    }();
    EXPECT_EQ(base.period, table.period());
    Table after(spec);
    load_table(after, std::vector{folder / "whole"});
    for (int step = 0; step < 3; ++step) {
      const Drawn drawn = batch(random, 5000, 4);
      table.push(drawn.keys, drawn.gradients);
      after.push(drawn.keys, drawn.gradients);
      EXPECT_EQ(end_period(table), end_period(after));
    }
    EXPECT_TRUE(rows_of(table) == rows_of(after));
  }
}

TEST(Lifecycle, RowsWithoutOneAreAnotherTables) {
  const TemporaryFolder folder;
  TableSpec spec = adding({});
  Table table(spec);
  TableSave save(table, real_file_system(), folder / "rows");
  while (save.save_some()) {}
  spec.lifecycle.reset();
  Table other(spec);
  try {
    load_table(other, std::vector{folder / "rows"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_config);
    EXPECT_THAT(error.what(), HasSubstr("the file has a lifecycle, and the table has none"));
  }
}

TEST(Lifecycle, SaysWhatOfItIsWrong) {
  const auto told = [](const Lifecycle& lifecycle) {
    try {
      check(adding(lifecycle));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(told({}), "");
  EXPECT_THAT(told({.decay = 0}), HasSubstr("table ads: lifecycle.decay is 0"));
  EXPECT_THAT(told({.decay = 1.5f}), HasSubstr("lifecycle.decay is 1.5"));
  EXPECT_THAT(told({.click_weight = -1}), HasSubstr("click_weight is -1"));
  EXPECT_THAT(told({.admission = {.after = 16}}), testing::AllOf(HasSubstr("admission.after is 16"), HasSubstr("1 to 15")));
  EXPECT_THAT(told({.admission = {.probability = 0.0f}}), HasSubstr("admission.probability is 0"));
  EXPECT_THAT(told({.waiting_keys = 0}), HasSubstr("waiting_keys is 0"));
  EXPECT_THAT(told({.forget_after = 0}), HasSubstr("forget_after is 0"));
  EXPECT_THAT(told({.eviction = {.unseen = 0}}), HasSubstr("eviction.unseen is 0"));
  EXPECT_THAT(told({.eviction = {.below = NAN}}), HasSubstr("eviction.below is nan"));
  EXPECT_THAT(told({.slot_bits = 17}), HasSubstr("slot_bits is 17"));
  EXPECT_THAT(told({.slot_bits = 4, .slots = {{.slot = 16}}}), HasSubstr("lifecycle.slots.slot is 16"));
  EXPECT_THAT(told({.slots = {{.slot = 1}, {.slot = 1}}}), HasSubstr("each slot once"));
  EXPECT_THAT(told({.slots = {{.slot = 1, .learning_rate_scale = 0}}}), HasSubstr("learning_rate_scale is 0"));
}

}  // namespace
}  // namespace tessera::ps
