// Tables that go to other servers while workers train them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <deque>
#include <future>
#include <memory>
#include <thread>

#include "base/error.hpp"
#include "base/temporary_folder.hpp"
#include "ps/client.hpp"
#include "ps/connection_breaker.hpp"
#include "ps/disk_helper.hpp"
#include "ps/move.hpp"
#include "ps/running_server.hpp"
#include "ps/training_helper.hpp"

namespace tessera::ps {
namespace {

using testing::HasSubstr;

constexpr int kDimension = 8, kWorkers = 2, kSteps = 60;
constexpr std::uint64_t kKeys = 20'000;

using Places = std::vector<std::string>;

TableSpec ads() {
  return {.name = "ads", .dimension = kDimension, .optimizer = {.rule = Rule::adam}, .consistency = Consistency::synchronous};
}

std::vector<Key> all_keys() {
  std::vector<Key> keys(kKeys);
  for (std::uint64_t i = 0; i < kKeys; ++i) keys[i] = i;
  return keys;
}

std::vector<float> values_of(Client& client, Client::TableId table) {
  std::vector<float> values(kKeys * kDimension);
  client.pull(table, all_keys(), values, Absent::zeros);
  return values;
}

std::vector<std::uint64_t> rows_at(const Places& places) {
  std::vector<std::uint64_t> rows;
  for (const ServerStatus& server : Client(places, "").status()) {
    rows.push_back(0);
    for (const TableStatus& table : server.tables) rows.back() += table.rows;
  }
  return rows;
}

// Trains at `places.front()`, and from there goes on at each of the others. Returns the rows' values at the end.
std::vector<float> trained(const TableSpec& spec, const std::vector<Places>& places) {
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<Client::TableId> tables;
  for (int worker = 0; worker < kWorkers; ++worker) {
    clients.push_back(
        std::make_unique<Client>(places.front(), "", ClientOptions{.worker = Worker{.index = worker, .count = kWorkers, .run = 1}}));
    tables.push_back(clients.back()->open(spec));
  }
  std::size_t at = 0;
  std::future<std::unique_ptr<Move>> copying;
  const auto between_steps = [&](int step) {
    if (spec.lifecycle && step % 20 == 19) clients.front()->end_period(tables.front());
    const bool in_any_case = step == kSteps / 2 || step == kSteps - 5;
    if (copying.valid() && (copying.wait_for(std::chrono::seconds(0)) == std::future_status::ready || in_any_case)) {
      const std::unique_ptr<Move> move = copying.get();
      for (const auto& client : clients) client->wait_for_workers();
      move->finish();
      ++at;
      std::vector<std::jthread> joining;
      for (const auto& client : clients) joining.emplace_back([&, at] { client->go_on_at(places[at], "", at + 1); });
      joining.clear();
      move->drop();
      EXPECT_GT(move->rows(), 1000u);
    }
    // Some steps are made before, between and after.
    if (at + 1 < places.size() && !copying.valid() && step > static_cast<int>(at * 20 + 10))
      copying = std::async(std::launch::async, [&, from = places[at], to = places[at + 1]] {
        auto move = std::make_unique<Move>(from, to, "", std::vector{spec});
        move->copy();
        return move;
      });
  };
  int step = 0;
  std::barrier stand(kWorkers, [&]() noexcept { between_steps(step++); });
  {
    std::vector<std::jthread> threads;
    for (int worker = 0; worker < kWorkers; ++worker)
      threads.emplace_back([&, worker] {
        const auto index = static_cast<std::size_t>(worker);
        for (int i = 0; i < kSteps; ++i) {
          train_step(*clients[index], tables[index], kKeys, kDimension, worker, i);
          stand.arrive_and_wait();
        }
        clients[index]->wait_for_workers();
      });
  }
  EXPECT_EQ(at + 1, places.size());
  return values_of(*clients.front(), tables.front());
}

TEST(Move, FromTwoServersToThreeAndBackWhileWorkersTrainChangesNoValue) {
  TableSpec lives = ads();
  lives.optimizer.rule = Rule::adagrad;
  lives.lifecycle = Lifecycle{.decay = 0.5f, .eviction = {.unseen = 1}};
  for (const TableSpec& spec : {ads(), lives}) {
    std::deque<RunningServer> servers(5);
    const std::string &a = servers[0].place, &b = servers[1].place, &c = servers[2].place;
    const std::vector<float> moved = trained(spec, {{a, b}, {a, b, c}, {c, a}});
    EXPECT_EQ(moved, trained(spec, {{servers[3].place, servers[4].place}}));
    const std::vector<std::uint64_t> rows = rows_at({a, b, c, servers[3].place, servers[4].place});
    EXPECT_EQ(rows[1], 0u) << "the server that was left keeps nothing";
    EXPECT_EQ(rows[0] + rows[2], rows[3] + rows[4]);
  }
}

struct Trained {
  explicit Trained(const Places& places) : client(places, ""), table(client.open(spec)) {
    std::vector<float> gradients(kKeys * kDimension, 1.0f);
    client.push(table, all_keys(), gradients);
  }
  TableSpec spec = {.name = "ads", .dimension = kDimension};
  Client client;
  Client::TableId table;
};

TEST(Move, ThatIsGivenUpLeavesEverythingWhereItWas) {
  std::deque<RunningServer> servers(3);
  const std::string &a = servers[0].place, &b = servers[1].place, &c = servers[2].place;
  Trained run({a, b});
  const std::vector<float> values = values_of(run.client, run.table);
  const std::vector<std::uint64_t> before = rows_at({a, b, c});
  {
    Move move({a, b}, {a, b, c}, "", {run.spec});
    move.copy();
    EXPECT_GT(rows_at({a, b, c})[2], 0u);
  }
  EXPECT_EQ(rows_at({a, b, c}), before);
  EXPECT_EQ(values_of(run.client, run.table), values);
}

TEST(Move, LosesNoRowWhenConnectionsAreLost) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "a message takes longer there than a connection lasts";
#endif
  constexpr int kWide = 64, kMoves = 10;  // many messages
  std::deque<RunningServer> servers(2);
  const TableSpec spec{.name = "wide", .dimension = kWide};
  Client client({servers[0].place}, "");
  const Client::TableId table = client.open(spec);
  const std::vector<Key> keys = all_keys();
  std::vector<float> before(kKeys * kWide, 1.0f), after(before.size());
  client.push(table, keys, before);
  client.pull(table, keys, before, Absent::zeros);
  for (std::uint64_t moves = 0; moves < kMoves; ++moves) {
    const Places from = {servers[moves % 2].place}, to = {servers[1 - moves % 2].place};
    Move move(from, to, "", {spec});
    const ConnectionBreaker breaker(moves);
    move.copy();
    for (bool finished = false; !finished;) try {
        move.finish();
        finished = true;
      } catch (const Error& error) {
        // A request for what has changed, asked for again, ends the move.
        ASSERT_EQ(error.code(), ErrorCode::not_found) << error.what();
        move.copy();
      }
    client.go_on_at(to, "", moves);
    move.drop();
  }
  client.pull(table, keys, after, Absent::zeros);
  EXPECT_EQ(after, before);
}

TEST(Move, BeginsAnewWhereASaveHasComeBetween) {
  std::deque<RunningServer> servers(2);
  const std::string &a = servers[0].place, &b = servers[1].place;
  Trained run({a});
  TemporaryFolder folder;
  Move move({a}, {b}, "", {run.spec});
  run.client.begin_save(folder.path());
  move.copy();  // waits for the save
  run.client.finish_save();
  run.client.begin_save(folder.path());
  run.client.finish_save();
  EXPECT_THROW(move.finish(), Error);
  move.copy();
  move.finish();
  run.client.go_on_at({b}, "", 1);
  EXPECT_EQ(rows_at({a, b})[1], kKeys);
  move.drop();
  EXPECT_EQ(rows_at({a, b}), (std::vector<std::uint64_t>{0, kKeys}));
}

TEST(Move, TakesKeysThatWaitToBeAdmitted) {
  std::deque<RunningServer> servers(3);
  const std::string &a = servers[0].place, &b = servers[1].place, &c = servers[2].place;
  TableSpec spec{.name = "ads", .dimension = 1, .lifecycle = Lifecycle{.admission = {.after = 3}}};
  Client client({a}, "");
  const Client::TableId table = client.open(spec);
  const std::vector<Key> keys = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<float> gradients(keys.size(), 1.0f);
  for (int times = 0; times < 2; ++times) client.push(table, keys, gradients);
  Move move({a}, {b, c}, "", {spec});
  move.copy();
  move.finish();
  client.go_on_at({b, c}, "", 1);
  EXPECT_EQ(rows_at({a, b, c}), (std::vector<std::uint64_t>{0, 0, 0}));
  client.push(table, keys, gradients);
  const std::vector<std::uint64_t> rows = rows_at({a, b, c});
  EXPECT_EQ(rows[1] + rows[2], keys.size());
}

TEST(Move, RefusesServersThatHoldRowsOfAnotherRun) {
  std::deque<RunningServer> servers(2);
  const std::string &a = servers[0].place, &b = servers[1].place;
  Trained run({a}), other({b});
  try {
    Move({a}, {a, b}, "", {run.spec});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_config);
    EXPECT_THAT(error.what(), HasSubstr(text("the server at ", b, " holds ", kKeys, " rows of a table 'ads' already")));
  }
}

TEST(Move, OfRowsThatMemoryHasNoRoomForChangesNoValue) {
  const TemporaryFolder rows;
  std::deque<RunningServer> servers;
  for (int i = 0; i < 3; ++i) servers.emplace_back(on_disk(rows.path()));
  const RunningServer other;
  const std::string &a = servers[0].place, &b = servers[1].place, &c = servers[2].place;
  LargeTable moved({a, b}), expected({other.place});
  std::uint64_t seed = 0;
  const auto push = [&](int times) {
    for (int i = 0; i < times; ++i, ++seed)
      for (LargeTable* const table : {&moved, &expected}) table->push(seed);
  };
  push(20);
  EXPECT_GT(moved.on_disk(), Bytes(0));
  Move move({a, b}, {b, c}, "", moved.client.opened());
  move.copy();
  push(3);
  move.finish();
  moved.client.go_on_at({b, c}, "", 1);
  move.drop();
  EXPECT_EQ(moved.values(), expected.values());
  push(3);
  EXPECT_EQ(moved.values(), expected.values());
  EXPECT_GT(moved.on_disk(), Bytes(0));
  EXPECT_EQ(rows_at({a}).front(), 0u);
}

}  // namespace
}  // namespace tessera::ps
