// Tables that servers save while they are pushed to, and load again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "ps/client.hpp"
#include "ps/running_server.hpp"
#include "ps/training_helper.hpp"

namespace tessera::ps {
namespace {

using testing::HasSubstr;

constexpr int kDimension = 8;
constexpr std::uint64_t kKeys = 50'000;

TableSpec ads() { return {.name = "ads/of all kinds", .dimension = kDimension, .optimizer = {.rule = Rule::adam}}; }
TableSpec users() { return {.name = "users", .dimension = 3, .type = RowType::bf16}; }

struct Cluster {
  explicit Cluster(std::size_t count) : servers(count) {
    std::vector<std::string> places;
    for (const RunningServer& server : servers) places.push_back(server.place);
    client.emplace(places, "");
    first = client->open(ads());
    second = client->open(users());
  }
  void push(std::uint64_t seed, std::size_t count = 5000) {
    Random random(seed);
    std::vector<Key> keys(count);
    for (Key& key : keys) key = random.below(kKeys);
    std::vector<float> gradients(count * kDimension);
    for (float& gradient : gradients) gradient = static_cast<float>(random.uniform() - 0.5);
    client->push(first, keys, gradients);
    client->push(second, keys, std::span(gradients).first(count * 3));
  }
  std::vector<float> values() {
    std::vector<Key> keys(kKeys);
    for (std::uint64_t i = 0; i < kKeys; ++i) keys[i] = i;
    std::vector<float> all(kKeys * (kDimension + 3));
    client->pull(first, keys, std::span(all).first(kKeys * kDimension), Absent::zeros);
    client->pull(second, keys, std::span(all).subspan(kKeys * kDimension), Absent::zeros);
    return all;
  }
  std::deque<RunningServer> servers;
  std::optional<Client> client;
  Client::TableId first = 0, second = 0;
};

TEST(Saves, HoldTheMomentAtWhichTheyBeginAndAreLoadedByAnyNumberOfServers) {
  TemporaryFolder folder;
  Cluster cluster(2);
  for (std::uint64_t seed = 0; seed < 10; ++seed) cluster.push(seed);
  const std::vector<float> before = cluster.values();
  cluster.client->begin_save(folder.path() / "tables");
  for (std::uint64_t seed = 100; seed < 120; ++seed) cluster.push(seed);  // beside the save
  cluster.client->finish_save();
  EXPECT_NE(cluster.values(), before);
  for (const std::size_t count : {1, 2, 3}) {
    Cluster other(count);
    other.client->load(folder.path() / "tables");
    EXPECT_EQ(other.values(), before);
    std::uint64_t rows = 0;
    for (const ServerStatus& server : other.client->status()) rows += server.tables.front().rows;
    EXPECT_GT(rows, 30'000u);
  }
  // With the optimizers' states: what is trained next is the same.
  Cluster again(2), uninterrupted(2);
  again.client->load(folder.path() / "tables");
  for (std::uint64_t seed = 0; seed < 10; ++seed) uninterrupted.push(seed);
  for (std::uint64_t seed = 50; seed < 55; ++seed) {
    again.push(seed);
    uninterrupted.push(seed);
  }
  EXPECT_EQ(again.values(), uninterrupted.values());
}

TEST(Saves, OfWhatHasChangedStandBehindTheOneBefore) {
  TemporaryFolder folder;
  Cluster cluster(2);
  for (std::uint64_t seed = 0; seed < 10; ++seed) cluster.push(seed);
  const auto size = [&folder] {
    std::uintmax_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) bytes += entry.file_size();
    return bytes;
  };
  cluster.client->begin_save(folder.path());
  cluster.client->finish_save();
  const std::uintmax_t base = size();
  for (std::uint64_t seed = 20; seed < 23; ++seed) {
    cluster.push(seed, 500);
    cluster.client->begin_save(folder.path(), SnapshotRows::changed);
    cluster.client->finish_save();
  }
  EXPECT_LT(size(), base + base / 5);
  Cluster other(2);
  other.client->load(folder.path());
  EXPECT_EQ(other.values(), cluster.values());
  // A base takes the place of all of it.
  cluster.client->begin_save(folder.path());
  cluster.client->finish_save();
  EXPECT_LT(size(), base + base / 20);
}

TEST(Saves, HaveAllRowsAgainWhereAnotherSaveHasComeBetween) {
  TemporaryFolder folder;
  Cluster cluster(2);
  const auto save = [&](const char* to, SnapshotRows rows) {
    cluster.client->begin_save(folder.path() / to, rows);
    cluster.client->finish_save();
  };
  cluster.push(1);
  save("run", SnapshotRows::all);
  cluster.push(2);
  save("other", SnapshotRows::all);
  cluster.push(3);
  save("run", SnapshotRows::changed);
  Cluster again(2);
  again.client->load(folder.path() / "run");
  EXPECT_EQ(again.values(), cluster.values());
}

TEST(Saves, CarryARunFromTwoServersToThreeAndBack) {
  constexpr int kSteps = 15, kWorkers = 2;
  TableSpec spec = ads();
  spec.consistency = Consistency::synchronous;
  const auto run = [&](const std::vector<std::size_t>& servers_by_phase) {
    TemporaryFolder folder;
    std::deque<RunningServer> servers;
    std::vector<float> result(kKeys * kDimension);
    int step = 0;
    for (std::size_t phase = 0; phase < servers_by_phase.size(); ++phase) {
      std::vector<std::string> places;
      for (std::size_t i = 0; i < servers_by_phase[phase]; ++i) places.push_back(servers.emplace_back().place);
      const int end = kSteps * static_cast<int>(phase + 1) / static_cast<int>(servers_by_phase.size());
      std::vector<std::unique_ptr<Client>> clients;
      for (int worker = 0; worker < kWorkers; ++worker)
        clients.push_back(std::make_unique<Client>(
            places, "", ClientOptions{.worker = Worker{.index = worker, .count = kWorkers, .run = phase + 1, .first_step = step}}));
      std::vector<Client::TableId> tables;
      for (const auto& client : clients) tables.push_back(client->open(spec));
      if (phase > 0) clients[0]->load(folder.path());
      {
        std::vector<std::jthread> threads;
        for (int worker = 0; worker < kWorkers; ++worker)
          threads.emplace_back([&, worker] {
            const auto index = static_cast<std::size_t>(worker);
            for (int at = step; at < end; ++at) train_step(*clients[index], tables[index], kKeys, kDimension, worker, at);
            clients[index]->wait_for_workers();
          });
      }
      step = end;
      clients[0]->begin_save(folder.path());
      clients[0]->finish_save();
      std::vector<Key> keys(kKeys);
      for (std::uint64_t i = 0; i < kKeys; ++i) keys[i] = i;
      clients[0]->pull(tables[0], keys, result, Absent::zeros);
    }
    return result;
  };
  EXPECT_EQ(run({2, 3, 2}), run({2}));
}

TEST(Saves, AreRefusedWhereTheyDoNotFit) {
  TemporaryFolder folder;
  RunningServer server;
  {
    Cluster cluster(1);
    cluster.push(1);
    cluster.client->begin_save(folder.path());
    cluster.client->finish_save();
  }
  const auto problem = [&](TableSpec spec) {
    RunningServer fresh;
    Client client({fresh.place}, "");
    client.open(spec);
    try {
      client.load(folder.path());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  TableSpec wider = ads();
  wider.dimension = 9;
  EXPECT_THAT(problem(wider), HasSubstr("dimension"));
  TableSpec another = ads();
  another.name = "clicks";
  EXPECT_THAT(problem(another), HasSubstr("there is no table clicks"));
}

TEST(Saves, OfOtherTablesAreRefusedByAServerThatKeepsItsRows) {
  TemporaryFolder folder, whole;
  const auto table = [](const char* name) {
    TableSpec spec = ads();
    spec.name = name;
    return spec;
  };
  const std::vector<Key> keys = {1, 2, 3};
  const std::vector<float> gradients(keys.size() * kDimension, 1.0f);
  RunningServer server, saved_at;
  Client saving({saved_at.place}, "");
  saving.push(saving.open(table("theirs")), keys, gradients);
  saving.begin_save(folder.path());
  saving.finish_save();

  Client client({server.place}, "");
  const Client::TableId ours = client.open(table("ours"));
  client.push(ours, keys, gradients);
  client.begin_save(whole.path());
  client.finish_save();
  std::vector<float> before(gradients.size()), after(gradients.size());
  client.pull(ours, keys, before);
  Client other({server.place}, "");
  other.open(table("theirs"));
  try {
    other.load(folder.path());
    ADD_FAILURE() << "rows of another run were emptied";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_config);
    EXPECT_THAT(error.what(), HasSubstr("rows of table 'theirs' are to be loaded in place of those that the server at " + server.place +
                                        " holds, which are of table 'ours'"));
    EXPECT_THAT(error.what(), HasSubstr("servers of its own"));
  }
  client.pull(ours, keys, after, Absent::zeros);
  EXPECT_EQ(after, before);
  // The table without rows that the other one has left is in nobody's way.
  client.push(ours, keys, gradients);
  client.load(whole.path());
  client.pull(ours, keys, after, Absent::zeros);
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace tessera::ps
