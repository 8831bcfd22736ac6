#include "ps/latencies.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "ps/client.hpp"
#include "ps/messages.hpp"
#include "ps/running_server.hpp"
#include "ps/summary.hpp"

namespace tessera::ps {
namespace {

TEST(Latencies, KnowPercentilesToAQuarterOfThemselves) {
  Latencies latencies;
  EXPECT_FALSE(latencies.quantile(0.5));
  for (int i = 1; i <= 1000; ++i) latencies.add(Seconds(i * 1e-5));  // 10 us to 10 ms, evenly
  EXPECT_EQ(latencies.count(), 1000u);
  EXPECT_NEAR(latencies.sum.value, 5.005, 1e-9);
  EXPECT_NEAR(latencies.quantile(0.5)->value, 5e-3, 0.25 * 5e-3);
  EXPECT_NEAR(latencies.quantile(0.99)->value, 9.9e-3, 0.25 * 9.9e-3);
  EXPECT_LE(latencies.quantile(0.5)->value, latencies.quantile(0.99)->value);
  latencies = {};
  latencies.add(Seconds(60));  // longer than all classes
  EXPECT_EQ(latencies.counts.back(), 1u);
  EXPECT_DOUBLE_EQ(latencies.quantile(0.5)->value, 10);
}

TEST(Latencies, HaveEndsThatGrowByAQuarterAtMost) {
  EXPECT_DOUBLE_EQ(Latencies::end(0), 1e-5);
  EXPECT_DOUBLE_EQ(Latencies::end(Latencies::kEnds - 1), 10);
  for (std::size_t place = 1; place < Latencies::kEnds; ++place) {
    EXPECT_GT(Latencies::end(place), Latencies::end(place - 1));
    EXPECT_LT(Latencies::end(place), 1.3 * Latencies::end(place - 1));
  }
}

TEST(Latencies, OfTwoLooksAreWhatCameBetween) {
  Latencies before;
  before.add(Seconds(1e-4));
  Latencies after = before;
  after.add(Seconds(2e-3));
  const Latencies between = since(before, after);
  EXPECT_EQ(between.count(), 1u);
  EXPECT_NEAR(between.sum.value, 2e-3, 1e-12);
  EXPECT_GT(between.quantile(0.5)->value, 1e-3);
  // A server that has begun anew.
  EXPECT_EQ(since(after, before).count(), 1u);
  EXPECT_NEAR(since(after, before).sum.value, 1e-4, 1e-12);
}

TEST(Latencies, AreCountedByTableAndAreTheSameOnceTold) {
  RunningServer server;
  Client client({server.place}, "");
  const Client::TableId ads = client.open({.name = "ads", .dimension = 2}), users = client.open({.name = "users", .dimension = 2});
  std::vector<float> values(2);
  const std::vector<Key> keys = {7};
  for (int i = 0; i < 3; ++i) client.pull(ads, keys, values);
  client.push(ads, keys, values);
  client.pull(users, keys, values);
  const ServerStatus status = client.status().front();
  EXPECT_EQ(status.tables.at(0).latencies.pulls.count(), 3u);
  EXPECT_EQ(status.tables.at(0).latencies.pushes.count(), 1u);
  EXPECT_EQ(status.tables.at(1).latencies.pulls.count(), 1u);
  EXPECT_EQ(status.tables.at(1).latencies.pushes.count(), 0u);
  EXPECT_GT(status.tables.at(0).latencies.pulls.sum.value, 0);
  ServerStatus told = status;
  told.tables.front().latencies.pulls.add(Seconds(60));
  for (std::size_t place = 0; place < Latencies::kEnds; ++place) told.tables.front().latencies.pulls.add(Seconds(Latencies::end(place)));
  const ServerStatus again = status_from_json(to_json(told));
  EXPECT_EQ(again.tables.front().latencies.pulls.counts, told.tables.front().latencies.pulls.counts);
  EXPECT_DOUBLE_EQ(again.tables.front().latencies.pulls.sum.value, told.tables.front().latencies.pulls.sum.value);
}

TEST(Summary, AddsUpTheServersOfATableAndWhatCameBetweenTwoLooks) {
  const auto server = [](std::uint64_t rows, std::uint64_t pulled) {
    return ServerStatus{.backup = {},
                        .tables = {{.name = "ads",
                                    .dimension = 4,
                                    .rows = rows,
                                    .memory = {.index = Bytes(10), .rows = Bytes(100), .hits = pulled, .misses = 50},
                                    .keys_pulled = pulled},
                                   {.name = "others", .dimension = 4, .rows = 1000, .memory = {.index = {}, .rows = {}}}}};
  };
  const std::vector<ServerStatus> before = {server(20, 100), server(10, 100)}, after = {server(60, 250), server(20, 150)};
  const TableSummary all = summarize(after, "ads");
  EXPECT_EQ(all.servers, 2);
  EXPECT_EQ(all.rows, 80u);
  EXPECT_EQ(all.memory.rows, Bytes(200));
  EXPECT_DOUBLE_EQ(*all.skew(), 1.5);
  EXPECT_DOUBLE_EQ(*hit_share(all.memory), 0.8);
  const TableSummary between = summarize(since(before, after), "ads");
  EXPECT_EQ(between.rows, 80u);
  EXPECT_EQ(between.keys_pulled, 200u);
  EXPECT_DOUBLE_EQ(*hit_share(between.memory), 1);
  EXPECT_FALSE(summarize(after, "none").skew());
}

}  // namespace
}  // namespace tessera::ps
