// Pairs of servers as processes that are killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <numeric>

#include "base/error.hpp"
#include "base/free_port.hpp"
#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "ps/client.hpp"
#include "ps/disk_helper.hpp"
#include "ps/killed_server.hpp"
#include "ps/move.hpp"

namespace tessera::ps {
namespace {

using Clock = std::chrono::steady_clock;

struct TwoServers {
  const std::string first = free_loopback_place(), second = free_loopback_place();
  KilledServer leader{first, {.pair = Pair{Pair::First::leads, second}}}, standby{second, {.pair = Pair{Pair::First::stands_by, first}}};
  std::string place() const { return first + "/" + second; }
};

void wait_for_backup(Client& client) {
  for (int turn = 0; turn < 500; ++turn) {
    if (client.status().front().backup != "") return;
    usleep(20'000);
  }
  FAIL() << "there is no backup after ten seconds";
}

TEST(Pair, NothingAcknowledgedIsLostOrDoubledWhenServersAreKilled) {
  const char* const wanted = std::getenv("TESSERA_PS_KILLS");
  const int kills = wanted ? std::atoi(wanted) : 12;
  TwoServers servers;
  Counting counting(servers.place());
  KilledServer* const both[] = {&servers.leader, &servers.standby};
  Random random(11);
  double longest = 0;
  int of_leaders = 0;
  for (int turn = 0; turn < kills; ++turn) {
    wait_for_backup(counting.client);
    const bool second_leads = counting.client.status().front().backup == servers.first;
    const bool of_leader = random.below(4) != 0;
    KilledServer& victim = *both[(second_leads ? 1 : 0) ^ (of_leader ? 0 : 1)];
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

TEST(Pair, ABackupIsGivenRowsThatMemoryHasNoRoomFor) {
  const TemporaryFolder rows;
  const std::string first = free_loopback_place(), second = free_loopback_place();
  ServerOptions leads = on_disk(rows.path()), stands_by = leads;
  leads.pair = Pair{Pair::First::leads, second};
  stands_by.pair = Pair{Pair::First::stands_by, first};
  KilledServer leader(first, leads), standby(second, stands_by);
  const KilledServer other;
  LargeTable paired({first + "/" + second}), expected({other.place});
  std::uint64_t seed = 0;
  const auto push = [&](int times) {
    for (int i = 0; i < times; ++i, ++seed)
      for (LargeTable* const table : {&paired, &expected}) table->push(seed);
  };
  push(15);
  KilledServer *leading = &leader, *backing = &standby;
  for (int turn = 0; turn < 2; ++turn) {
    // A copy of all of it, and what comes behind it.
    backing->kill();
    push(1);
    backing->start();
    wait_for_backup(paired.client);
    push(3);
    EXPECT_GT(paired.on_disk(), Bytes(0));
    leading->kill();
    ASSERT_EQ(paired.values(), expected.values());
    EXPECT_GT(paired.on_disk(), Bytes(0));
    leading->start();
    std::swap(leading, backing);
  }
}

}  // namespace
}  // namespace tessera::ps
