// Copies that workers train, and the differences that they exchange.
#include "ps/geo.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "base/random.hpp"
#include "ps/connection_breaker.hpp"
#include "ps/running_server.hpp"

namespace tessera::ps {
namespace {

using testing::HasSubstr;

constexpr int kDimension = 4;
constexpr std::uint64_t kKeys = 200;

TableSpec ads(const OptimizerSpec& optimizer) { return {.name = "ads", .dimension = kDimension, .optimizer = optimizer}; }

ClientOptions worker(int index, int count) { return {.worker = Worker{.index = index, .count = count, .run = 5}}; }

// The servers' rows, as one sees them who trains nothing.
std::vector<float> rows_of(const std::vector<std::string>& places, const TableSpec& spec, std::span<const Key> keys) {
  Client client(places, "");
  std::vector<float> values(keys.size() * kDimension);
  client.pull(client.open(exchanged(spec)), keys, values);
  return values;
}

struct Samples {
  std::vector<Key> keys;
  std::vector<float> gradients;
};
// Some keys stand there twice.
Samples samples_of(int step, int of) {
  Random random(static_cast<std::uint64_t>(step * 100 + of));
  Samples samples{std::vector<Key>(60), std::vector<float>(60 * kDimension)};
  for (Key& key : samples.keys) key = random.below(kKeys);
  for (float& gradient : samples.gradients) gradient = static_cast<float>(random.uniform() - 0.5);
  return samples;
}

// Pushes each key once, with the sum of its gradients.
void push_sums(Table& table, const std::vector<Samples>& all) {
  std::map<Key, std::vector<float>> sums;
  for (const Samples& samples : all)
    for (std::size_t i = 0; i < samples.keys.size(); ++i) {
      std::vector<float>& sum = sums.try_emplace(samples.keys[i], kDimension).first->second;
      for (std::size_t d = 0; d < kDimension; ++d) sum[d] += samples.gradients[i * kDimension + d];
    }
  for (const auto& [key, sum] : sums) table.push(std::vector{key}, sum);
}

std::vector<Key> all_keys() {
  std::vector<Key> keys(kKeys);
  for (std::uint64_t i = 0; i < kKeys; ++i) keys[i] = i;
  return keys;
}

void expect_near(const std::vector<float>& values, const std::vector<float>& right) {
  ASSERT_EQ(values.size(), right.size());
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], right[i], 1e-5) << i;
}

TEST(Geo, OneWorkerTrainsWhatOneTableWould) {
  const OptimizerSpec optimizers[] = {{.rule = Rule::sgd},
                                      {.rule = Rule::adagrad, .initial_moment = 0.1f, .clip_norm = 0.5f},
                                      {.rule = Rule::adagrad, .row_moment = true},
                                      {.rule = Rule::adam}};
  for (const OptimizerSpec& optimizer : optimizers) {
    const TableSpec spec = ads(optimizer);
    std::deque<RunningServer> servers(2);
    const std::vector<std::string> places = {servers[0].place, servers[1].place};
    Client client(places, "", worker(0, 1));
    GeoTable geo(client, spec);
    Table expected(spec);
    for (int step = 0; step < 20; ++step) {
      const Samples samples = samples_of(step, 0);
      std::vector<float> values(samples.gradients.size()), right(values.size());
      geo.pull(samples.keys, values);
      expected.pull(samples.keys, right);
      expect_near(values, right);
      // As training does: the rows have been read, and what their gradients change is of the next round.
      if (step % 3 == 2) geo.exchange();
      const float rate = 0.05f / static_cast<float>(1 + step);
      geo.set_learning_rate(rate);
      expected.set_learning_rate(rate);
      geo.push(samples.keys, samples.gradients);
      push_sums(expected, {samples});
    }
    geo.exchange();
    std::vector<float> right(kKeys * kDimension);
    expected.pull(all_keys(), right);
    expect_near(rows_of(places, spec, all_keys()), right);
  }
}

TEST(Geo, WorkersThatExchangeEachStepOfSgdTrainWhatOneProcessWould) {
  constexpr int kWorkers = 2, kSteps = 15;
  const TableSpec spec = ads({.rule = Rule::sgd});
  Table expected(spec);
  for (int step = 0; step < kSteps; ++step) push_sums(expected, {samples_of(step, 0), samples_of(step, 1)});
  std::vector<float> right(kKeys * kDimension);
  expected.pull(all_keys(), right);

  RunningServer server;
  {
    std::vector<std::jthread> threads;
    for (int index = 0; index < kWorkers; ++index)
      threads.emplace_back([&, index] {
        Client client({server.place}, "", worker(index, kWorkers));
        GeoTable geo(client, spec);
        for (int step = 0; step < kSteps; ++step) {
          const Samples samples = samples_of(step, index);
          std::vector<float> values(samples.gradients.size());
          geo.pull(samples.keys, values);
          geo.push(samples.keys, samples.gradients);
          geo.exchange();
        }
        client.wait_for_workers();
      });
  }
  expect_near(rows_of({server.place}, spec, all_keys()), right);
}

// Two workers, in one thread, of which each has one key in common with the other and one of its own.
class TwoWorkers {
 public:
  explicit TwoWorkers(const TableSpec& given) : spec(given) {
    for (int index = 0; index < 2; ++index) {
      clients.emplace_back(std::vector{server.place}, "", worker(index, 2));
      tables.emplace_back(clients.back(), spec);
    }
  }
  float pull(std::size_t of, Key key) {
    std::vector<float> values(kDimension);
    tables[of].pull(std::vector{key}, values);
    return values[0];
  }
  void push(std::size_t of, Key key, float gradient) { tables[of].push(std::vector{key}, std::vector<float>(kDimension, gradient)); }
  void exchange() {
    for (GeoTable& table : tables) table.exchange();
  }
  float at_server(Key key) { return rows_of({server.place}, spec, std::vector{key})[0]; }

  const TableSpec spec;
  RunningServer server;
  std::deque<Client> clients;
  std::deque<GeoTable> tables;
};

TEST(Geo, DifferencesOfSeveralStepsAreAddedUp) {
  TableSpec spec = ads({.rule = Rule::sgd, .learning_rate = 0.5f});
  spec.initializer.kind = InitialValues::zero;
  TwoWorkers two(spec);
  for (int step = 0; step < 3; ++step) {
    two.push(0, 7, 1);
    two.push(1, 7, 3);
    two.push(1, 8, 5);
  }
  EXPECT_FLOAT_EQ(two.pull(0, 7), -1.5f);  // its own steps alone
  EXPECT_FLOAT_EQ(two.at_server(7), 0);
  two.exchange();
  EXPECT_FLOAT_EQ(two.at_server(7), -1.5f - 4.5f);
  EXPECT_FLOAT_EQ(two.at_server(8), -7.5f);
  for (const std::size_t of : {0, 1}) EXPECT_FLOAT_EQ(two.pull(of, 7), -6);
}

TEST(Geo, WhatACopyChangesBesideAnExchangeIsKept) {
  TableSpec spec = ads({.rule = Rule::sgd, .learning_rate = 1});
  spec.initializer.kind = InitialValues::zero;
  TwoWorkers two(spec);
  for (const std::size_t of : {0, 1}) two.push(of, 7, 1);
  two.exchange();
  two.push(0, 7, 10);  // of a row that this round has not fetched
  EXPECT_FLOAT_EQ(two.pull(0, 7), -2 - 10);
  EXPECT_FLOAT_EQ(two.pull(1, 7), -2);
  two.exchange();
  EXPECT_FLOAT_EQ(two.pull(1, 7), -12);
  two.exchange();  // of nothing
  EXPECT_FLOAT_EQ(two.at_server(7), -12);
}

TEST(Geo, AdagradStepsWithTheSquaresOfAllWorkers) {
  TableSpec spec = ads({.rule = Rule::adagrad, .learning_rate = 1, .epsilon = 0, .initial_moment = 7});
  spec.initializer.kind = InitialValues::zero;
  TwoWorkers two(spec);
  two.push(0, 7, 3);  // 7 + 9 = 16
  two.push(1, 7, 5);  // 7 + 25 = 32
  two.exchange();
  const float all = -3.0f / 4 - 5 / std::sqrt(32.0f);
  EXPECT_FLOAT_EQ(two.pull(0, 7), all);
  two.push(0, 7, std::sqrt(8.0f));  // 7 + 9 + 25 + 8 = 49
  EXPECT_FLOAT_EQ(two.pull(0, 7), all - std::sqrt(8.0f) / 7);
}

TEST(Geo, ACopyThatBeginsAnewGoesOnWithTheSquares) {
  TableSpec spec = ads({.rule = Rule::adagrad, .learning_rate = 1, .epsilon = 0});
  RunningServer server;
  std::optional<Client> client(std::in_place, std::vector{server.place}, "", worker(0, 1));
  std::optional<GeoTable> geo(std::in_place, *client, spec);
  const std::vector<Key> keys = {7};
  std::vector<float> before(kDimension), after(kDimension);
  geo->push(keys, std::vector<float>(kDimension, 4));
  geo->exchange();
  geo.reset();
  client.emplace(std::vector{server.place}, "", ClientOptions{.worker = Worker{.index = 0, .count = 1, .run = 6}});
  geo.emplace(*client, spec);
  geo->pull(keys, before);
  geo->push(keys, std::vector<float>(kDimension, 3));
  geo->pull(keys, after);
  EXPECT_FLOAT_EQ(after[0] - before[0], -3.0f / 5);  // 16 + 9 = 25
}

TEST(Geo, DifferencesAreAddedOnceHoweverOftenConnectionsAreLost) {
  constexpr int kLosses = 50;
  TableSpec spec = ads({.rule = Rule::sgd, .learning_rate = 1});
  spec.initializer.kind = InitialValues::zero;
  RunningServer server;
  ClientOptions options = worker(0, 1);
  options.reconnect = Seconds(30);
  Client client({server.place}, "", options);
  GeoTable geo(client, spec);
  std::vector<float> values(kKeys * kDimension);
  std::optional<ConnectionBreaker> breaker(std::in_place, 3);
  int steps = 0;
  for (; client.reconnections() < kLosses; ++steps) {
    geo.pull(all_keys(), values);
    geo.push(all_keys(), std::vector<float>(values.size(), -1));
    if (steps % 2 == 1) geo.exchange();
  }
  breaker.reset();
  geo.exchange();
  for (const float value : rows_of({server.place}, spec, all_keys())) ASSERT_EQ(value, static_cast<float>(steps));
}

TEST(Geo, RefusesFtrl) {
  RunningServer server;
  Client client({server.place}, "", worker(0, 1));
  try {
    GeoTable(client, ads({.rule = Rule::ftrl}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_config);
    EXPECT_THAT(error.what(), HasSubstr("table ads: workers cannot exchange differences of rows that FTRL trains"));
  }
}

}  // namespace
}  // namespace tessera::ps
