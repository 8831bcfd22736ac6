// Pairs of servers as processes that are killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/free_port.hpp"
#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "ps/client.hpp"
#include "ps/move.hpp"
#include "ps/server.hpp"

namespace tessera::ps {
namespace {

using Clock = std::chrono::steady_clock;

// A server in a process of its own, which may be killed and started again at the same place.
class Process {
 public:
  Process(std::string place, Pair pair) : place_(std::move(place)), pair_(std::move(pair)) { start(); }
  ~Process() { kill(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void start() {
    const pid_t parent = getpid();
    id_ = fork();
    if (id_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close_range(3, ~0U, 0);  // the test's connections
    try {
      Server server(place_, "", {.pair = pair_});
      server.serve({});
    } catch (const std::exception& error) {
      std::cerr << error.what() << "\n";
    }
    _exit(0);
  }
  void kill() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    waitpid(std::exchange(id_, -1), nullptr, 0);
  }
  // Another process does it, whatever this one is at.
  void kill_in(useconds_t microseconds) {
    killer_ = fork();
    if (killer_ != 0) return;
    close_range(3, ~0U, 0);
    usleep(microseconds);
    ::kill(id_, SIGKILL);
    _exit(0);
  }
  // Of one that is to be killed.
  bool has_ended() {
    if (waitpid(id_, nullptr, WNOHANG) != id_) return false;
    id_ = -1;
    waitpid(killer_, nullptr, 0);
    return true;
  }

 private:
  std::string place_;
  Pair pair_;
  pid_t id_ = -1, killer_ = -1;
};

struct TwoServers {
  const std::string first = free_loopback_place(), second = free_loopback_place();
  Process leader{first, {Pair::First::leads, second}}, standby{second, {Pair::First::stands_by, first}};
  std::string place() const { return first + "/" + second; }
};

void wait_for_backup(Client& client) {
  for (int turn = 0; turn < 500; ++turn) {
    if (!client.status().front().backup.empty()) return;
    usleep(20'000);
  }
  FAIL() << "there is no backup after ten seconds";
}

constexpr int kDimension = 4;
constexpr std::size_t kKeys = 20'000;
std::vector<Key> all_keys() {
  std::vector<Key> keys(kKeys);
  std::iota(keys.begin(), keys.end(), 1);
  return keys;
}

// Adds 1 to every row in each push; a row says how many were applied.
struct Counting {
  explicit Counting(const std::string& place) : client({place}, "", {.reconnect = Seconds(30)}) {
    table = client.open(
        {.name = "counts", .dimension = kDimension, .optimizer = {.rule = Rule::add}, .initializer = {.kind = InitialValues::zero}});
  }
  void push() {
    client.push(table, keys, ones);
    ++pushes;
  }
  void expect_all() {
    std::vector<float> values(ones.size());
    client.pull(table, keys, values, Absent::zeros);
    EXPECT_THAT(values, testing::Each(static_cast<float>(pushes)));
  }
  Client client;
  Client::TableId table;
  const std::vector<Key> keys = all_keys();
  const std::vector<float> ones = std::vector<float>(kKeys * kDimension, 1.0f);
  int pushes = 0;
};

TEST(Pair, NothingAcknowledgedIsLostOrDoubledWhenServersAreKilled) {
  const char* const wanted = std::getenv("TESSERA_PS_KILLS");
  const int kills = wanted ? std::atoi(wanted) : 12;
  TwoServers servers;
  Counting counting(servers.place());
  Process* const both[] = {&servers.leader, &servers.standby};
  Random random(11);
  double longest = 0;
  int of_leaders = 0;
  for (int turn = 0; turn < kills; ++turn) {
    wait_for_backup(counting.client);
    const bool second_leads = counting.client.status().front().backup == servers.first;
    const bool of_leader = random.below(4) != 0;
    Process& victim = *both[(second_leads ? 1 : 0) ^ (of_leader ? 0 : 1)];
    of_leaders += of_leader ? 1 : 0;
    victim.kill_in(static_cast<useconds_t>(random.below(40'000)));
    while (!victim.has_ended()) {
      const auto begun = Clock::now();
      counting.push();
      longest = std::max(longest, std::chrono::duration<double>(Clock::now() - begun).count());
    }
    for (int i = 0; i < 3; ++i) counting.push();
    counting.expect_all();
    victim.start();
  }
  wait_for_backup(counting.client);
  counting.push();
  counting.expect_all();
  std::cout << kills << " kills, " << of_leaders << " of them leaders; longest push: " << longest << " s\n";
}

TEST(Pair, ABackupThatHasBegunAnewUnnoticedIsGivenEverythingAgain) {
  TwoServers servers;
  Counting counting(servers.place());
  wait_for_backup(counting.client);
  counting.push();
  servers.standby.kill();
  servers.standby.start();
  counting.push();
  wait_for_backup(counting.client);
  servers.leader.kill();
  counting.push();
  counting.expect_all();
}

TEST(Pair, PlacesOfRowsThatTheLostServerHasToldMisleadNobody) {
  TwoServers servers;
  Counting counting(servers.place());
  // Rows that the leader alone has, in other places than the backup will give them.
  std::vector<Key> more(kKeys);
  std::iota(more.begin(), more.end(), 1'000'000);
  std::vector<float> values(kKeys * kDimension);
  counting.client.pull(counting.table, more, values);
  wait_for_backup(counting.client);
  counting.push();
  counting.client.pull(counting.table, counting.keys, values);
  servers.leader.kill();
  counting.push();
  counting.expect_all();
}

TEST(Pair, ASaveWhoseServerIsLostIsNone) {
  TwoServers servers;
  Counting counting(servers.place());
  wait_for_backup(counting.client);
  counting.push();
  TemporaryFolder folder;
  counting.client.begin_save(folder.path());
  servers.leader.kill();
  try {
    counting.client.finish_save();
    ADD_FAILURE() << "the backup has written nothing";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
  }
  counting.client.begin_save(folder.path());
  counting.client.finish_save();
}

TEST(Pair, WhatMovesToAnotherPairIsAtItsBackupAndAServerThatIsLostBeforeEndsNothingButTheMove) {
  TwoServers servers, others;
  Counting counting(servers.place());
  wait_for_backup(counting.client);
  Client there({others.place()}, "");
  wait_for_backup(there);
  counting.push();
  Move move({servers.place()}, {others.place()}, "", counting.client.opened());
  move.copy();
  counting.push();
  servers.leader.kill();
  counting.push();
  EXPECT_THROW(move.finish(), Error) << "its backup knows nothing of what has been copied";
  move.copy();
  counting.push();
  move.finish();
  counting.client.go_on_at({others.place()}, "", 1);
  counting.expect_all();
  others.leader.kill();
  counting.push();
  counting.expect_all();
}

}  // namespace
}  // namespace tessera::ps
