// Workers that train together: what they see of each other, and that nothing is lost or doubled when connections break.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "base/random.hpp"
#include "ps/client.hpp"
#include "ps/connection_breaker.hpp"
#include "ps/running_server.hpp"

namespace tessera::ps {
namespace {

using testing::HasSubstr;

constexpr int kDimension = 8;
constexpr std::uint64_t kKeys = 3000;

TableSpec ads(Consistency consistency, int staleness = 1, Rule rule = Rule::adagrad) {
  return {.name = "ads", .dimension = kDimension, .optimizer = {.rule = rule}, .consistency = consistency, .staleness = staleness};
}

struct Samples {
  std::vector<Key> keys;
  std::vector<float> gradients;
};
// What a worker pushes in a step.
Samples samples_of(int step, int worker, std::size_t count) {
  Random random(static_cast<std::uint64_t>(step * 100 + worker));
  Samples samples{std::vector<Key>(count), std::vector<float>(count * kDimension)};
  for (Key& key : samples.keys) key = random.below(kKeys);
  for (float& gradient : samples.gradients) gradient = static_cast<float>(random.uniform() - 0.5);
  return samples;
}

std::vector<Key> all_keys() {
  std::vector<Key> keys(kKeys);
  for (std::uint64_t i = 0; i < kKeys; ++i) keys[i] = i;
  return keys;
}

void run_workers(int count, const std::function<void(int)>& work) {
  std::vector<std::jthread> threads;
  for (int worker = 0; worker < count; ++worker) threads.emplace_back([&work, worker] { work(worker); });
}

TEST(Workers, SynchronousStepsAreThoseOfOneProcess) {
  constexpr int kSteps = 20, kWorkers = 4;
  const TableSpec spec = ads(Consistency::synchronous);
  Table expected(spec);
  for (int step = 0; step < kSteps; ++step) {
    std::map<Key, std::vector<float>> sums;
    for (int worker = 0; worker < kWorkers; ++worker) {
      const Samples samples = samples_of(step, worker, 400);
      for (std::size_t i = 0; i < samples.keys.size(); ++i) {
        std::vector<float>& sum = sums.try_emplace(samples.keys[i], kDimension).first->second;
        for (std::size_t d = 0; d < kDimension; ++d) sum[d] += samples.gradients[i * kDimension + d];
      }
    }
    for (const auto& [key, sum] : sums) expected.push(std::vector{key}, sum);
  }
  std::vector<float> right(kKeys * kDimension);
  expected.pull(all_keys(), right);

  std::deque<RunningServer> servers(2);
  const std::vector<std::string> places = {servers[0].place, servers[1].place};
  run_workers(kWorkers, [&](int worker) {
    Client client(places, "", {.worker = Worker{.index = worker, .count = kWorkers, .run = 5}});
    const Client::TableId table = client.open(spec);
    std::vector<float> values(400 * kDimension);
    for (int step = 0; step < kSteps; ++step) {
      const Samples samples = samples_of(step, worker, 400);
      client.pull(table, samples.keys, values);
      // In two parts, as of two micro-batches.
      const std::span keys(samples.keys);
      const std::span gradients(samples.gradients);
      client.push(table, keys.first(150), gradients.first(150 * kDimension));
      client.push(table, keys.subspan(150), gradients.subspan(150 * kDimension));
      client.end_step();
    }
    client.wait_for_workers();
    std::vector<float> all(kKeys * kDimension);
    client.pull(table, all_keys(), all);
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_NEAR(all[i], right[i], 1e-5);
    EXPECT_EQ(client.staleness().most, 0);
  });
}

TEST(Workers, AreNeverFurtherAheadThanTheirStaleness) {
  for (const int staleness : {0, 1, 3}) {
    RunningServer server;
    constexpr int kWorkers = 3, kSteps = 40;
    std::array<std::atomic<int>, kWorkers> ended{};
    std::atomic<int> most = 0;
    run_workers(kWorkers, [&](int worker) {
      Client client({server.place}, "", {.worker = Worker{.index = worker, .count = kWorkers, .run = 5}});
      const Client::TableId table = client.open(ads(Consistency::asynchronous, staleness));
      Random random(static_cast<std::uint64_t>(worker));
      std::vector<float> values(50 * kDimension);
      for (int step = 0; step < kSteps; ++step) {
        const Samples samples = samples_of(step, worker, 50);
        client.pull(table, samples.keys, values);
        for (const std::atomic<int>& other : ended) EXPECT_GE(other, step - staleness);
        if (worker == 0 || random.below(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(random.below(1500)));
        client.push(table, samples.keys, samples.gradients);
        ended[static_cast<std::size_t>(worker)] = step + 1;  // before the servers know, so that it is never too few
        client.end_step();
      }
      EXPECT_LE(client.staleness().most, staleness);
      EXPECT_EQ(client.staleness().pulls, kSteps);
      int seen = most;
      while (seen < client.staleness().most && !most.compare_exchange_weak(seen, static_cast<int>(client.staleness().most))) {}
    });
    EXPECT_EQ(most > 0, staleness > 0);
  }
}

TEST(Workers, SeeAsMuchInPullsAheadOfTheirStep) {
  constexpr int kWorkers = 3, kSteps = 40, kStaleness = 2;
  RunningServer server;
  std::array<std::atomic<int>, kWorkers> ended{};
  run_workers(kWorkers, [&](int worker) {
    Client client({server.place}, "", {.worker = Worker{.index = worker, .count = kWorkers, .run = 5}});
    const Client::TableId table = client.open(ads(Consistency::asynchronous, kStaleness));
    Random random(static_cast<std::uint64_t>(worker));
    std::vector<float> values(50 * kDimension);
    client.pull(table, samples_of(0, worker, 50).keys, values);
    for (int step = 0; step < kSteps; ++step) {
      client.pull(table, samples_of(step + 1, worker, 50).keys, values, Absent::create, 1);
      for (const std::atomic<int>& other : ended) EXPECT_GE(other, step + 1 - kStaleness);
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(1500)));
      const Samples samples = samples_of(step, worker, 50);
      client.push(table, samples.keys, samples.gradients);
      ended[static_cast<std::size_t>(worker)] = step + 1;
      client.end_step();
    }
    EXPECT_LE(client.staleness().most, kStaleness);
    EXPECT_GE(client.staleness().most, 1);  // its own step at least
  });
}

TEST(Workers, AWaitForThemCanBeInterrupted) {
  RunningServer server;
  std::atomic<bool> interrupted = false;
  Client first({server.place}, "", {.worker = Worker{.index = 0, .count = 2, .run = 5}});
  Client second({server.place}, "", {.interrupted = &interrupted, .worker = Worker{.index = 1, .count = 2, .run = 5}});
  const Client::TableId table = second.open(ads(Consistency::synchronous));
  second.end_step();
  const std::jthread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    interrupted = true;
  });
  std::vector<float> values(kDimension);
  try {
    second.pull(table, std::vector<Key>{1}, values);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::interrupted);
  }
}

TEST(Workers, OneThatIsWaitedForInVainIsNamed) {
  RunningServer server;
  Client first({server.place}, "", {.worker = Worker{.index = 0, .count = 2, .run = 5}});
  Client second({server.place}, "", {.deadline = Seconds(1), .worker = Worker{.index = 1, .count = 2, .run = 5}});
  const Client::TableId table = second.open(ads(Consistency::synchronous));
  second.end_step();
  try {
    std::vector<float> values(kDimension);
    second.pull(table, std::vector<Key>{1}, values);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::deadline_exceeded);
    EXPECT_THAT(error.what(), HasSubstr("for worker 0 of 2, which has ended 0"));
  }
}

TEST(Workers, OfAnotherRunTakeTheServersOver) {
  RunningServer server;
  Client old_one({server.place}, "", {.worker = Worker{.index = 0, .count = 2, .run = 5}});
  const Client::TableId table = old_one.open(ads(Consistency::synchronous));
  Client fresh({server.place}, "", {.worker = Worker{.index = 0, .count = 1, .run = 6, .first_step = 10}});
  const Client::TableId same = fresh.open(ads(Consistency::synchronous));
  const Samples samples = samples_of(0, 0, 10);
  EXPECT_THROW(old_one.push(table, samples.keys, samples.gradients), Error);
  std::vector<float> values(10 * kDimension);
  fresh.pull(same, samples.keys, values);
  fresh.push(same, samples.keys, samples.gradients);
  fresh.end_step();
  EXPECT_EQ(fresh.status().front().slowest, 11);
  Client third({server.place}, "", {.worker = Worker{.index = 1, .count = 2, .run = 6}});
  EXPECT_THROW(third.open(ads(Consistency::synchronous)), Error);
}

TEST(Workers, OfARunOfAnotherNameAreRefusedWhileThoseThatAreThereAreConnected) {
  RunningServer server;
  const TableSpec spec = ads(Consistency::synchronous);
  const Samples samples = samples_of(0, 0, 10);
  const auto of = [](const char* name, std::uint64_t run) {
    return ClientOptions{.deadline = Seconds(1), .worker = Worker{.index = 0, .count = 1, .run = run, .name = name}};
  };
  std::optional<Client> there(std::in_place, std::vector{server.place}, "", of("ads", 5));
  const Client::TableId table = there->open(spec);
  try {
    Client({server.place}, "", of("clicks", 6)).open(spec);
    ADD_FAILURE() << "it has taken the servers over";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_config);
    EXPECT_THAT(error.what(),
                HasSubstr("run 'clicks' wants to train at the server at " + server.place + ", where 1 worker of run 'ads' trains"));
    EXPECT_THAT(error.what(), HasSubstr("servers of its own"));
  }
  there->push(table, samples.keys, samples.gradients);
  there->end_step();
  // One that is only looked at by others, or was started again, is in nobody's way.
  Client({server.place}, "", {}).open(spec);
  std::optional<Client> again(std::in_place, std::vector{server.place}, "", of("ads", 7));
  again->open(spec);
  EXPECT_THROW(there->push(table, samples.keys, samples.gradients), Error);
  there.reset();
  again.reset();
  Client other({server.place}, "", of("clicks", 8));
  other.push(other.open(spec), samples.keys, samples.gradients);
}

TEST(Workers, AWorkerThatComesAgainBeginsItsStepAnew) {
  RunningServer server;
  const TableSpec spec = ads(Consistency::synchronous, 1, Rule::add);
  const auto worker = [](int index) { return ClientOptions{.worker = Worker{.index = index, .count = 2, .run = 5}}; };
  std::vector<Key> keys = {7};
  const std::vector<float> ones(kDimension, 1.0f);
  Client other({server.place}, "", worker(1));
  const Client::TableId table = other.open(spec);
  std::vector<float> before(kDimension), after(kDimension);
  other.pull(table, keys, before);
  {
    Client lost({server.place}, "", worker(0));
    lost.push(lost.open(spec), keys, ones);
  }
  Client again({server.place}, "", worker(0));
  again.push(again.open(spec), keys, ones);
  again.end_step();
  other.push(table, keys, ones);
  other.end_step();
  other.pull(table, keys, after);
  EXPECT_FLOAT_EQ(after[0], before[0] + 2);
}

TEST(Workers, PushesAreAppliedOnceHoweverOftenConnectionsAreLost) {
  const char* const wanted = std::getenv("TESSERA_PS_LOSSES");
  const int losses = wanted ? std::atoi(wanted) : 200;
  RunningServer server;
  const TableSpec spec = ads(Consistency::asynchronous, 1, Rule::add);
  Client client({server.place}, "", {.reconnect = Seconds(30)});
  const Client::TableId table = client.open(spec);
  const std::vector<Key> keys = all_keys();
  std::vector<float> before(kKeys * kDimension), after(before.size());
  client.pull(table, keys, before);
  std::optional<ConnectionBreaker> breaker(std::in_place, 3);
  const std::vector<float> ones(kKeys * kDimension, 1.0f);
  int pushes = 0;
  for (; client.reconnections() < losses; ++pushes) {
    client.push(table, keys, ones);
    if (pushes % 3 == 0) client.pull(table, keys, after);
  }
  breaker.reset();
  client.pull(table, keys, after);
  for (std::size_t i = 0; i < after.size(); ++i) ASSERT_NEAR(after[i] - before[i], pushes, 1e-3 * pushes);
  std::cout << "connections lost: " << client.reconnections() << ", pushes: " << pushes << "\n";
}

}  // namespace
}  // namespace tessera::ps
