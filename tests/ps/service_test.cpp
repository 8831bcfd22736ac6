#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <thread>

#include "base/error.hpp"
#include "base/random.hpp"
#include "ps/client.hpp"
#include "ps/running_server.hpp"

namespace tessera::ps {
namespace {

using testing::Each;
using testing::HasSubstr;

TableSpec ads(int dimension, RowType type = RowType::fp32) { return {.name = "ads", .dimension = dimension, .type = type}; }

struct Drawn {
  std::vector<Key> keys;
  std::vector<float> gradients;
};
Drawn draw(Random& random, std::size_t count, int dimension, std::uint64_t of) {
  Drawn drawn{std::vector<Key>(count), std::vector<float>(count * static_cast<std::size_t>(dimension))};
  for (Key& key : drawn.keys) key = random.below(of) * 0x9E3779B97F4A7C15ull;
  // Of few bits, so that their sums are the same in any order.
  for (float& gradient : drawn.gradients) gradient = static_cast<float>(static_cast<int>(random.below(17)) - 8) / 8;
  return drawn;
}

// What the servers should hold: each key of a batch once, with its gradients added up.
void push_sums(Table& table, const Drawn& drawn) {
  const auto dimension = static_cast<std::size_t>(table.spec().dimension);
  std::map<Key, std::vector<float>> sums;
  for (std::size_t i = 0; i < drawn.keys.size(); ++i) {
    std::vector<float>& sum = sums.try_emplace(drawn.keys[i], dimension).first->second;
    for (std::size_t d = 0; d < dimension; ++d) sum[d] += drawn.gradients[i * dimension + d];
  }
  for (const auto& [key, sum] : sums) table.push(std::vector{key}, sum);
}

TEST(Service, AnswersAsOneTableWouldHoweverManyServersThereAre) {
  for (const std::size_t count : {1, 2, 3})
    for (const int dimension : {1, 16, 37}) {
      std::deque<RunningServer> servers(count);
      std::vector<std::string> places;
      for (const RunningServer& server : servers) places.push_back(server.place);
      Client client(places, "");
      const Client::TableId table = client.open(ads(dimension));
      Table expected(ads(dimension));
      Random random(17);
      for (int step = 0; step < 6; ++step) {
        // More than go into one message, many of them twice.
        const Drawn drawn = draw(random, 30'000, dimension, 20'000);
        std::vector<float> values(drawn.gradients.size()), right(values.size());
        client.pull(table, drawn.keys, values);
        expected.pull(drawn.keys, right);
        ASSERT_EQ(values, right);
        // With the tickets of the pull, and without.
        const Drawn pushed =
            step % 2 == 0 ? Drawn{drawn.keys, draw(random, 30'000, dimension, 1).gradients} : draw(random, 500, dimension, 40'000);
        client.push(table, pushed.keys, pushed.gradients);
        push_sums(expected, pushed);
      }
      std::uint64_t rows = 0;
      for (const ServerStatus& server : client.status()) {
        ASSERT_EQ(server.tables.size(), 1u);
        const TableStatus& shard = server.tables.front();
        EXPECT_EQ(shard.name, "ads");
        rows += shard.rows;
        EXPECT_NEAR(static_cast<double>(shard.rows), static_cast<double>(expected.size()) / static_cast<double>(count), 500);
      }
      EXPECT_EQ(rows, expected.size());
    }
}

TEST(Service, ServesSeveralClientsAndTables) {
  RunningServer server;
  std::vector<std::jthread> workers;
  for (int worker = 0; worker < 3; ++worker)
    workers.emplace_back([&server] {
      Client client({server.place}, "");
      TableSpec spec = ads(4);
      spec.optimizer.rule = Rule::add;
      spec.initializer.kind = InitialValues::zero;
      client.open({.name = "users", .dimension = 9});
      const Client::TableId table = client.open(spec);
      std::vector<Key> keys(1000);
      std::iota(keys.begin(), keys.end(), 0);
      for (int step = 0; step < 20; ++step) client.push(table, keys, std::vector<float>(4000, 1.0f));
    });
  workers.clear();
  Client client({server.place}, "");
  TableSpec spec = ads(4);
  spec.optimizer.rule = Rule::add;
  spec.initializer.kind = InitialValues::zero;
  const Client::TableId table = client.open(spec);
  std::vector<float> values(4 * 1000);
  std::vector<Key> keys(1000);
  std::iota(keys.begin(), keys.end(), 0);
  client.pull(table, keys, values, Absent::zeros);
  EXPECT_THAT(values, Each(60.0f));
  const std::vector<TableStatus> status = client.status().front().tables;
  ASSERT_EQ(status.size(), 2u);
  EXPECT_EQ(status[0].keys_pushed + status[1].keys_pushed, 60'000u);
}

TEST(Service, CountsAndRefusesGradientsThatAreNotFinite) {
  RunningServer server;
  Client client({server.place}, "");
  const Client::TableId table = client.open(ads(2));
  const PushResult result = client.push(table, std::vector<Key>{1, 2}, std::vector<float>{0, NAN, 1, 1});
  EXPECT_EQ(result.applied, 1);
  EXPECT_EQ(result.refused, 1);
  EXPECT_EQ(client.status().front().tables.front().gradients_refused, 1u);
}

TEST(Service, RefusesRowsThatAreNotAsManyAsKeys) {
  RunningServer server;
  Client client({server.place}, "");
  const Client::TableId table = client.open(ads(2));
  const std::vector<Key> keys = {1, 2};
  std::vector<float> three(3);
  const auto refusal = [](const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_config);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal([&] { client.pull(table, keys, three); }), HasSubstr("2 keys, and 3 values; expected 2 for each key"));
  EXPECT_THAT(refusal([&] { client.push(table, keys, three); }), HasSubstr("2 keys, and 3 gradients; expected 2 for each key"));
  EXPECT_EQ(client.push(table, keys, std::vector<float>(4, 1.0f)).applied, 2);
}

TEST(Service, APushOfNoKeysIsNone) {
  RunningServer server;
  Client client({server.place}, "");
  const Client::TableId table = client.open(ads(2));
  const PushResult result = client.push(table, {}, {});
  EXPECT_EQ(result.applied, 0);
}

TEST(Service, ATableOfTheSameNameMustBeTheSame) {
  RunningServer server;
  Client one({server.place}, ""), other({server.place}, "");
  one.open(ads(2));
  other.open(ads(2));
  try {
    other.open(ads(3));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_config);
    EXPECT_THAT(error.what(),
                testing::AllOf(HasSubstr("table ads is there already"), HasSubstr("\"dimension\":2"), HasSubstr("\"dimension\":3")));
  }
  // The client still is of use.
  std::vector<float> values(4);
  one.pull(0, std::vector<Key>{1, 2}, values);
  EXPECT_EQ(other.status().front().tables.front().rows, 2u);
}

}  // namespace
}  // namespace tessera::ps
