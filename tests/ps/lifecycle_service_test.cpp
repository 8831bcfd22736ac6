// Tables with a lifecycle on servers: what clients tell them, and that leader and backup, saved and loaded tables are the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "ps/client.hpp"
#include "ps/lifecycle_messages.hpp"
#include "ps/messages.hpp"
#include "ps/running_server.hpp"
#include "ps/shards.hpp"

namespace tessera::ps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Keys = std::vector<Key>;
using Values = std::vector<float>;
using Seen = std::vector<Impressions>;

TableSpec counting(const Lifecycle& lifecycle, Consistency consistency = Consistency::asynchronous) {
  return {.name = "ads",
          .dimension = 1,
          .optimizer = {.rule = Rule::add},
          .initializer = {.kind = InitialValues::zero},
          .consistency = consistency,
          .lifecycle = lifecycle};
}

TEST(LifecycleService, ImpressionsOfAKeyThatRepeatsAreAddedUpAndPeriodsEndAtEveryServer) {
  std::deque<RunningServer> servers(2);
  Client client({servers[0].place, servers[1].place}, "");
  const Client::TableId table = client.open(counting({.decay = 0.5f, .click_weight = 1, .unclicked_weight = 0, .eviction = {.below = 1}}));
  Keys keys;
  Seen seen;
  // 3 shows and 2 clicks of each of 1000 keys, but the last one's, which is clicked once.
  for (int look_up = 0; look_up < 3; ++look_up)
    for (Key key = 1; key <= 1000; ++key) {
      keys.push_back(key);
      seen.push_back({.shows = 1, .clicks = look_up < (key == 1000 ? 1 : 2) ? 1.0f : 0.0f});
    }
  EXPECT_EQ(client.push(table, keys, Values(keys.size(), 1), seen).applied, 1000);
  EXPECT_EQ(client.end_period(table), 1u);  // a score of 0.5; the others have 1
  Values values(2);
  client.pull(table, Keys{999, 1000}, values, Absent::zeros);
  EXPECT_THAT(values, ElementsAre(3, 0));
  // Three shows, where nothing else is said.
  client.push(table, Keys{5, 5, 5}, Values(3, 1));
  EXPECT_EQ(client.end_period(table), 999u);
  std::uint64_t admitted = 0, evicted = 0;
  for (const ServerStatus& server : client.status()) {
    const TableStatus::Life life = server.tables.front().lifecycle.value();
    EXPECT_EQ(life.period, 2u);
    EXPECT_GT(life.counts.admitted, 400u);
    admitted += life.counts.admitted;
    evicted += life.counts.evicted;
  }
  EXPECT_EQ(admitted, 1000u);
  EXPECT_EQ(evicted, 1000u);
}

TEST(LifecycleService, KeysWaitAtTheirServersUntilTheyWereSeenOftenEnough) {
  std::deque<RunningServer> servers(2);
  Client client({servers[0].place, servers[1].place}, "");
  const Client::TableId table = client.open(counting({.admission = {.after = 3}, .waiting_keys = 10'000}));
  Keys keys(100);
  for (Key key = 0; key < keys.size(); ++key) keys[key] = key;
  Values values(keys.size());
  for (int push = 1; push <= 4; ++push) {
    client.pull(table, keys, values);
    EXPECT_EQ(client.push(table, keys, Values(keys.size(), 1)).applied, push < 3 ? 0 : 100);
  }
  client.pull(table, keys, values);
  EXPECT_THAT(values, testing::Each(2));
  std::uint64_t held_back = 0;
  for (const ServerStatus& server : client.status()) held_back += server.tables.front().lifecycle->counts.held_back;
  EXPECT_EQ(held_back, 200u);
}

TEST(LifecycleService, OfASynchronousTableAStepsShowsAreThoseOfAllItsWorkers) {
  RunningServer server;
  const TableSpec spec =
      counting({.decay = 1, .click_weight = 1, .unclicked_weight = 0, .eviction = {.below = 3}}, Consistency::synchronous);
  std::vector<std::unique_ptr<Client>> workers;
  for (const int index : {0, 1})
    workers.push_back(
        std::make_unique<Client>(std::vector{server.place}, "", ClientOptions{.worker = Worker{.index = index, .count = 2, .run = 1}}));
  for (const auto& worker : workers) worker->open(spec);
  workers[0]->push(0, Keys{1, 2}, Values{1, 1}, Seen{{.shows = 2, .clicks = 2}, {.shows = 2, .clicks = 1}});
  workers[1]->push(0, Keys{2, 1}, Values{1, 1}, Seen{{.shows = 1, .clicks = 1}, {.shows = 1, .clicks = 1}});
  EXPECT_EQ(workers[0]->end_period(0), 0u);  // the step is not over: nothing was seen yet
  for (const auto& worker : workers) worker->end_step();
  EXPECT_EQ(workers[0]->end_period(0), 1u);  // 2 clicks of the second key, and 3 of the first
  Values values(2);
  workers[1]->pull(0, Keys{1, 2}, values, Absent::zeros);
  EXPECT_THAT(values, ElementsAre(2, 0));
}

TEST(LifecycleService, PeriodsAreOfTablesThatHaveOne) {
  RunningServer server;
  Client client({server.place}, "");
  TableSpec spec = counting({});
  spec.lifecycle.reset();
  const Client::TableId table = client.open(spec);
  EXPECT_THROW(client.end_period(table), Error);
  EXPECT_THROW(client.push(table, Keys{1}, Values{1}, Seen(1)), Error);
  // One that speaks otherwise is told so, and the server lives on.
  Shards shards;
  std::vector<std::byte> reply(comm::kMostMessageBytes);
  const auto ask = [&](const AskHeader& header, const std::string& words) {
    std::vector<std::byte> message(sizeof header + words.size());
    std::memcpy(message.data(), &header, sizeof header);
    std::memcpy(message.data() + sizeof header, words.data(), words.size());
    try {
      shards.answer(message, reply);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string joining = to_json(Joining{}), plain = to_json(spec), other = to_json([&] {
                                                                           TableSpec of_other = counting({});
                                                                           of_other.name = "users";
                                                                           return of_other;
                                                                         }());
  ask({.ask = Ask::join, .table = 0, .count = joining.size(), .client = 7, .number = 0}, joining);
  ask({.ask = Ask::open, .table = 0, .count = plain.size(), .client = 7, .number = 0}, plain);
  ask({.ask = Ask::open, .table = 0, .count = other.size(), .client = 7, .number = 0}, other);
  EXPECT_THAT(ask({.ask = Ask::end_period, .table = 0, .count = 0, .client = 7, .number = 1}, ""), HasSubstr("it has no lifecycle"));
  const EvictPart part{.part = 3, .parts = 3};
  EXPECT_THAT(
      ask({.ask = Ask::evict, .table = 1, .count = 1, .client = 7, .number = 2}, {reinterpret_cast<const char*>(&part), sizeof part}),
      HasSubstr("part 3 of 3"));
}

TEST(LifecycleService, ABackupThatIsGivenTheSameMessagesOrACopyHoldsTheSame) {
  Shards leader, backup;
  Messages messages(3);
  for (const std::vector<std::byte>& message : messages.begin()) {
    answer(leader, message);
    answer(backup, message);
  }
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 150; ++i) {
      const std::vector<std::byte> message = messages.next();
      const std::vector<std::byte> first = answer(leader, message);
      EXPECT_TRUE(first == answer(backup, message));
    }
    expect_same(leader, backup);
    // Then a new one takes its place.
    Shards fresh;
    std::vector<std::byte> request(comm::kMostMessageBytes);
    leader.copy(
        5, [&] { return std::span(request); }, [&](std::size_t bytes) { answer(fresh, std::span(request).first(bytes)); });
    expect_same(leader, fresh);
    backup = std::move(fresh);
  }
  const LifecycleCounts counts = leader.tables().front()->lifecycle_counts();
  EXPECT_GT(counts.admitted, 1000u);
  EXPECT_GT(counts.held_back, 1000u);
  EXPECT_GT(counts.evicted, 1000u);
}

TEST(LifecycleService, ALoadedTableGoesOnAsTheOneThatWasSaved) {
  TemporaryFolder folder;
  TableSpec spec = Messages::spec();
  spec.lifecycle->waiting_keys = 50'000;
  const auto step = [](Client& client, std::uint64_t seed) {
    Random random(seed);
    Keys keys(3000);
    for (Key& key : keys) key = random.below(2) << 63 | random.below(10'000);
    Values gradients(keys.size() * 2);
    for (float& gradient : gradients) gradient = static_cast<float>(random.uniform() - 0.5);
    Seen seen(keys.size());
    for (Impressions& one : seen) one.clicks = static_cast<float>(random.below(2));
    client.push(0, keys, gradients, seen);
    if (seed % 3 == 0) client.end_period(0);
  };
  const auto values = [](Client& client) {
    Keys keys(20'000);
    for (std::uint64_t i = 0; i < keys.size(); ++i) keys[i] = i % 2 << 63 | i / 2;
    Values all(keys.size() * 2);
    client.pull(0, keys, all, Absent::zeros);
    return all;
  };
  struct Cluster {
    Cluster(std::size_t count, const TableSpec& spec) : servers(count) {
      std::vector<std::string> places;
      for (const RunningServer& server : servers) places.push_back(server.place);
      client = std::make_unique<Client>(places, "");
      client->open(spec);
    }
    std::deque<RunningServer> servers;
    std::unique_ptr<Client> client;
  };
  Cluster saved(2, spec), same(2, spec), more(3, spec);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) step(*saved.client, seed);
  saved.client->begin_save(folder.path());
  saved.client->finish_save();
  same.client->load(folder.path());
  more.client->load(folder.path());
  EXPECT_EQ(values(*same.client), values(*saved.client));
  EXPECT_EQ(values(*more.client), values(*saved.client));
  EXPECT_EQ(more.client->status()[2].tables.front().lifecycle->period, 3u);
  for (std::uint64_t seed = 11; seed <= 20; ++seed) {
    step(*saved.client, seed);
    step(*same.client, seed);
  }
  EXPECT_EQ(values(*same.client), values(*saved.client));
}

}  // namespace
}  // namespace tessera::ps
