#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.hpp"
#include "base/random.hpp"
#include "ps/ps.hpp"

namespace tessera::ps {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;

TableSpec zeros(int dimension, OptimizerSpec optimizer) {
  return {.name = "ads", .dimension = dimension, .optimizer = optimizer, .initializer = {.kind = InitialValues::zero}};
}

std::vector<float> pulled(Table& table, std::vector<Key> keys, Absent absent = Absent::zeros) {
  std::vector<float> values(keys.size() * table.spec().dimension, -1);
  table.pull(keys, values, {}, absent);
  return values;
}

TEST(Table, CreatesARowWhereABatchFirstNamesIt) {
  Table table({.name = "ads", .dimension = 4});
  EXPECT_THAT(pulled(table, {7}), Each(0));
  EXPECT_EQ(table.size(), 0u);
  const std::vector<float> first = pulled(table, {7, 8, 7}, Absent::create);
  EXPECT_EQ(table.size(), 2u);
  EXPECT_THAT(first, Each(testing::AllOf(testing::Ge(-0.01f), testing::Lt(0.01f))));
  EXPECT_EQ(std::vector(first.begin(), first.begin() + 4), std::vector(first.begin() + 8, first.end()));
  EXPECT_NE(std::vector(first.begin(), first.begin() + 4), std::vector(first.begin() + 4, first.begin() + 8));
}

TEST(Table, FirstValuesBelongToTheKeyAlone) {
  Table one({.name = "ads", .dimension = 3}), other({.name = "users", .dimension = 3});
  pulled(one, {1, 2, 3, 4}, Absent::create);
  EXPECT_EQ(pulled(one, {5}, Absent::create), pulled(other, {5}, Absent::create));
}

TEST(Table, FirstValuesHaveTheSpreadThatWasAsked) {
  for (const InitialValues kind : {InitialValues::uniform, InitialValues::normal}) {
    Table table({.name = "ads", .dimension = 15, .initializer = {.kind = kind, .scale = 0.5f}});
    std::vector<Key> keys(4000);
    std::iota(keys.begin(), keys.end(), 0);
    double sum = 0, squares = 0;
    for (const float value : pulled(table, keys, Absent::create)) {
      sum += value;
      squares += value * value;
    }
    EXPECT_NEAR(sum / 60000, 0, 0.01);
    EXPECT_NEAR(std::sqrt(squares / 60000), kind == InitialValues::normal ? 0.5 : 0.5 / std::sqrt(3.0), 0.005);
  }
}

TEST(Table, StepsEachRuleAsItsPaperSays) {
  const std::vector<float> g = {0.5f, -2};
  const auto after_two = [&](OptimizerSpec optimizer) {
    optimizer.learning_rate = 0.1f;
    Table table(zeros(2, optimizer));
    table.push(std::vector<Key>{9}, g);
    table.push(std::vector<Key>{9}, g);
    return pulled(table, {9});
  };
  EXPECT_THAT(after_two({.rule = Rule::add}), ElementsAre(1, -4));
  EXPECT_THAT(after_two({.rule = Rule::sgd}), ElementsAre(FloatNear(-0.1f, 1e-7f), FloatNear(0.4f, 1e-7f)));
  const float adagrad = 0.1f * (1 + 1 / std::sqrt(2.0f));
  EXPECT_THAT(after_two({.rule = Rule::adagrad}), ElementsAre(FloatNear(-adagrad, 1e-6f), FloatNear(adagrad, 1e-6f)));
  const float root = std::sqrt((0.25f + 4) / 2);
  EXPECT_THAT(after_two({.rule = Rule::adagrad, .row_moment = true}),
              ElementsAre(FloatNear(-adagrad * 0.5f / root, 1e-6f), FloatNear(adagrad * 2 / root, 1e-6f)));
  // Of equal gradients both corrected moments are the gradient's, so that each step is the learning rate.
  EXPECT_THAT(after_two({.rule = Rule::adam}), ElementsAre(FloatNear(-0.2f, 1e-5f), FloatNear(0.2f, 1e-5f)));
  EXPECT_THAT(after_two({.rule = Rule::adam, .row_moment = true}),
              ElementsAre(FloatNear(-0.2f * 0.5f / root, 1e-5f), FloatNear(0.2f * 2 / root, 1e-5f)));
  // Without penalties, FTRL's second step: -z / ((1 + sqrt(n)) / lr), z = 2 g - (sqrt(n) - |g|) / lr * w.
  const auto ftrl = [](float g) {
    const float w = -g / ((1 + std::abs(g)) / 0.1f), root = std::sqrt(2 * g * g), z = 2 * g - (root - std::abs(g)) / 0.1f * w;
    return -z / ((1 + root) / 0.1f);
  };
  EXPECT_THAT(after_two({.rule = Rule::ftrl}), ElementsAre(FloatNear(ftrl(0.5f), 1e-6f), FloatNear(ftrl(-2), 1e-6f)));
  EXPECT_THAT(after_two({.rule = Rule::ftrl, .l1 = 1.5f}), ElementsAre(0, testing::Gt(0)));
}

TEST(Table, ClipsARowsGradientToItsNorm) {
  Table table(zeros(2, {.rule = Rule::add, .clip_norm = 1.0f}));
  table.push(std::vector<Key>{1, 2}, std::vector<float>{3, 4, 0.3f, 0.4f});
  EXPECT_THAT(pulled(table, {1, 2}), ElementsAre(FloatNear(0.6f, 1e-6f), FloatNear(0.8f, 1e-6f), 0.3f, 0.4f));
}

TEST(Table, RefusesGradientsThatAreNotFinite) {
  Table table(zeros(2, {.rule = Rule::add}));
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const PushResult result = table.push(std::vector<Key>{1, 2, 3}, std::vector<float>{1, nan, 1, 1, -infinity, 1});
  EXPECT_EQ(result.applied, 1);
  EXPECT_EQ(result.refused, 2);
  EXPECT_THAT(pulled(table, {1, 2, 3}), ElementsAre(0, 0, 1, 1, 0, 0));
}

TEST(Table, PushesByTicketsAndByKeysAreTheSame) {
  for (const RowType type : {RowType::fp32, RowType::bf16, RowType::int8}) {
    TableSpec spec{.name = "ads", .dimension = 8, .type = type};
    Table by_ticket(spec), by_key(spec);
    Random random(11);
    for (int step = 0; step < 50; ++step) {
      std::vector<Key> keys(200);
      for (Key& key : keys) key = random.below(1000);
      std::vector<float> values(keys.size() * 8), gradients(values.size());
      for (float& gradient : gradients) gradient = static_cast<float>(random.uniform() - 0.5);
      std::vector<Ticket> tickets(keys.size());
      by_ticket.pull(keys, values, tickets, step % 2 == 0 ? Absent::create : Absent::zeros);
      // Erased in between, some rows are others' or nobody's.
      if (step % 5 == 0) {
        by_ticket.erase(std::span(keys).first(20));
        by_key.erase(std::span(keys).first(20));
      }
      by_ticket.push(keys, gradients, tickets);
      by_key.push(keys, gradients);
    }
    std::vector<Key> all(1000);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(pulled(by_ticket, all, Absent::create), pulled(by_key, all, Absent::create));
  }
}

TEST(Table, SmallUpdatesMoveRoundedRowsOnAverage) {
  for (const RowType type : {RowType::bf16, RowType::int8}) {
    TableSpec spec = zeros(16, {.rule = Rule::add});
    spec.type = type;
    Table table(spec);
    std::vector<Key> keys(200);
    std::iota(keys.begin(), keys.end(), 0);
    table.push(keys, std::vector<float>(keys.size() * 16, 1.0f));
    // A hundredth of what bf16 tells apart at 1 and a thirtieth of what int8 does, each.
    for (int step = 0; step < 100; ++step) table.push(keys, std::vector<float>(keys.size() * 16, 0.0001f));
    const std::vector<float> values = pulled(table, keys);
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    EXPECT_NEAR(mean, 1.01, 0.001);
  }
}

TEST(Table, StoredRowsGoOnAsIfNothingHadHappened) {
  for (const RowType type : {RowType::fp32, RowType::bf16, RowType::int8})
    for (const OptimizerSpec optimizer :
         {OptimizerSpec{.rule = Rule::sgd}, OptimizerSpec{.rule = Rule::adam}, OptimizerSpec{.rule = Rule::ftrl}}) {
      const TableSpec spec{.name = "ads", .dimension = 5, .type = type, .optimizer = optimizer};
      const std::vector<Key> keys = {1, 2, 3, ~Key{0}};
      std::vector<float> gradients(20);
      std::iota(gradients.begin(), gradients.end(), -9.0f);
      Table before(spec), after(spec);
      before.push(keys, gradients);
      before.for_each([&](Key key, std::span<const std::byte> stored) { after.restore(std::vector{key}, stored); });
      after.set_push_count(before.push_count());
      before.push(keys, gradients);
      after.push(keys, gradients);
      EXPECT_EQ(after.size(), 4u);
      EXPECT_EQ(pulled(after, keys), pulled(before, keys));
    }
}

TEST(Table, AnErasedRowBeginsAnewAndItsMemoryIsTakenAgain) {
  Table table(zeros(1, {.rule = Rule::adagrad}));
  for (Key key = 0; key < 1'000'000; key += 1000) {
    std::vector<Key> keys(1000);
    std::iota(keys.begin(), keys.end(), key);
    table.push(keys, std::vector<float>(1000, 1));
    EXPECT_EQ(table.erase(keys), 1000u);
    EXPECT_EQ(table.erase(keys), 0u);
  }
  EXPECT_EQ(table.size(), 0u);
  EXPECT_LT((table.memory().rows + table.memory().index).value, 1 << 20);
  table.push(std::vector<Key>{1}, std::vector<float>{1});
  EXPECT_THAT(pulled(table, {1}), ElementsAre(FloatNear(-0.05f, 1e-6f)));  // the first step of AdaGrad
}

TEST(Table, SaysWhatOfItsSpecIsWrong) {
  const auto told = [](TableSpec spec) {
    try {
      Table table(std::move(spec));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(told({.name = "ads", .dimension = 0}), testing::AllOf(HasSubstr("table ads: dimension is 0"), HasSubstr("1 to 65536")));
  EXPECT_THAT(told({.dimension = 1}), HasSubstr("no name"));
  EXPECT_THAT(told({.name = "ads", .dimension = 1, .optimizer = {.beta2 = 1}}), HasSubstr("beta2 is 1"));
  EXPECT_THAT(told({.name = "ads", .dimension = 1, .optimizer = {.rule = Rule::ftrl, .learning_rate = 0}}),
              HasSubstr("FTRL divides by it"));
}

}  // namespace
}  // namespace tessera::ps
