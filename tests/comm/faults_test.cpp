#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "comm/processes.hpp"

namespace tessera::comm {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::Ranks;
using ::testing::StartsWith;

// Neither the deadline nor silence may be what tells of a loss: both are longer than the patience of Ranks::wait_for_line.
constexpr double kFarAway = 600;

class Faults : public ::testing::TestWithParam<bool> {
 protected:
  Options options(int rank, int world, const std::string& place, double deadline = 60) {
    Options result = testing::options(rank, world, place, deadline);
    result.shared_memory = GetParam();
    return result;
  }
  Options without_timeout(int rank, int world, const std::string& place) {
    Options result = options(rank, world, place, kFarAway);
    result.heartbeat_timeout = Seconds(kFarAway);
    return result;
  }
};

// Runs the ranks until all of them say "running" and kills one: all others must hear of it.
void expect_heard(int count, int victim, const std::function<void(int rank)>& body) {
  Ranks ranks(count, [&](int rank) -> std::string {
    try {
      body(rank);
    } catch (const Error&) {
      testing::report("heard");
      throw;
    }
    return "no error";
  });
  for (int rank = 0; rank < count; ++rank) EXPECT_TRUE(ranks.wait_for_line(rank, "running"));
  ranks.signal(victim, SIGKILL);
  for (int rank = 0; rank < count; ++rank) {
    if (rank == victim) continue;
    EXPECT_TRUE(ranks.wait_for_line(rank, "heard"))
        << "rank " << rank << " was not told that rank " << victim << " of " << count << " died";
  }
  const auto outcomes = ranks.wait();
  for (int rank = 0; rank < count; ++rank) {
    if (rank == victim) continue;
    EXPECT_THAT(outcomes[static_cast<std::size_t>(rank)].text,
                AllOf(StartsWith("error peer_lost"), HasSubstr(text("rank ", victim, " is lost"))))
        << "rank " << rank;
  }
}

TEST_P(Faults, AKilledRankIsNamedByAllOthersWithoutATimeout) {
  for (const int victim : {0, 2, 3}) {
    const std::string place = free_loopback_place();
    expect_heard(4, victim, [&](int rank) {
      const auto communicator = Communicator::connect(without_timeout(rank, 4, place));
      std::vector<float> data(1 << 18);
      communicator->world().all_reduce(data.data(), data.size(), DataType::f32).wait();
      testing::report("running");
      while (true) communicator->world().all_reduce(data.data(), data.size(), DataType::f32).wait();
    });
  }
}

// Ranks 0 and 1 wait for each other, and have nothing to do with rank 2.
TEST_P(Faults, ALossIsHeardByRanksThatDoNotTalkToTheLostOne) {
  const std::string place = free_loopback_place();
  expect_heard(3, 2, [&](int rank) {
    const auto communicator = Communicator::connect(without_timeout(rank, 3, place));
    if (rank == 2) {
      testing::report("running");
      while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    const Group pair = communicator->group({0, 1}, "pair");
    std::byte byte{};
    const Handle message = pair.receive({&byte, 1}, 1 - rank, 9);
    testing::report("running");
    if (rank == 0) message.wait();
    std::vector<float> data(16);
    pair.all_reduce(data.data(), data.size(), DataType::f32).wait();
    message.wait();
  });
}

// With its threads; the thread sanitizer lets a process that calls _exit live on for a second.
[[noreturn]] void end_at_once() {
  ::kill(::getpid(), SIGKILL);
  std::abort();
}

TEST_P(Faults, FutureOperationsFailToo) {
  const std::string place = free_loopback_place();
  Ranks ranks(2, [&](int rank) -> std::string {
    const auto communicator = Communicator::connect(options(rank, 2, place));
    if (rank == 1) end_at_once();
    try {
      communicator->world().barrier().wait();
    } catch (const Error&) {}
    communicator->world().barrier().wait();
    return "no error";
  });
  EXPECT_THAT(ranks.wait()[0].text, AllOf(StartsWith("error peer_lost"), HasSubstr("rank 1")));
}

// The first words to a rank may meet its end at any point of connecting, also on the connection that it made itself.
TEST_P(Faults, FirstWordsToARankThatEnds) {
  for (const bool it_spoke : {false, true}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      const std::string place = free_loopback_place();
      Ranks ranks(2, [&](int rank) -> std::string {
        const auto communicator = Communicator::connect(options(rank, 2, place));
        std::vector<std::byte> word(64);
        if (rank == 1) {
          if (it_spoke) communicator->world().send(word, 0, 1).wait();
          end_at_once();
        }
        if (it_spoke) communicator->world().receive(word, 1, 1).wait();
        while (true) communicator->world().send(word, 1, 2).wait();
      });
      EXPECT_THAT(ranks.wait()[0].text, AllOf(StartsWith("error peer_lost"), HasSubstr("rank 1 is lost")));
    }
  }
}

// One of three ranks is stopped in the midst of collectives: what it leaves, the others say.
void expect_stopped_rank_is_named(const std::function<Options(int rank, const std::string& place)>& options_of,
                                  const std::function<std::string(int victim)>& error_of) {
  for (const int victim : {0, 2}) {
    const std::string place = free_loopback_place();
    Ranks ranks(3, [&](int rank) -> std::string {
      const auto communicator = Communicator::connect(options_of(rank, place));
      std::vector<float> data(1 << 16);
      communicator->world().all_reduce(data.data(), data.size(), DataType::f32).wait();
      testing::report("running");
      while (true) communicator->world().all_reduce(data.data(), data.size(), DataType::f32).wait();
    });
    for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(ranks.wait_for_line(rank, "running"));
    ranks.signal(victim, SIGSTOP);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_TRUE(ranks.wait_for_end(rank));
    }
    ranks.signal(victim, SIGKILL);
    const auto outcomes = ranks.wait();
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_THAT(outcomes[static_cast<std::size_t>(rank)].text, ContainsRegex(error_of(victim)));
    }
  }
}

TEST_P(Faults, AStoppedRankIsNamedAtTheDeadline) {
  expect_stopped_rank_is_named([&](int rank, const std::string& place) { return options(rank, 3, place, 2); },
                               [](int victim) { return text("^error deadline_exceeded.*all_reduce #.*rank ", victim); });
}

// Long before the deadline, as nobody hears of it any more; also where the ranks wait for others than it.
TEST_P(Faults, AStoppedRankIsGivenUp) {
  expect_stopped_rank_is_named(
      [&](int rank, const std::string& place) {
        Options mine = options(rank, 3, place, 300);
        mine.heartbeat_timeout = Seconds(3);
        return mine;
      },
      [](int victim) { return text("^error peer_lost.*rank ", victim, " is lost: it has not answered"); });
}

// A rank that lives but never comes is named as well, also where the ranks wait for each other in turn.
TEST_P(Faults, ARankThatDoesNotJoinIsNamedAtTheDeadline) {
  const std::string place = free_loopback_place();
  Ranks ranks(3, [&](int rank) -> std::string {
    const auto communicator = Communicator::connect(options(rank, 3, place, 2));
    std::vector<float> data(100);
    while (rank == 1) ::pause();
    communicator->world().all_reduce(data.data(), data.size(), DataType::f32).wait();
    return "no error";
  });
  for (const int rank : {0, 2}) EXPECT_TRUE(ranks.wait_for_end(rank));
  ranks.signal(1, SIGKILL);
  const auto outcomes = ranks.wait();
  for (const std::size_t rank : {0UL, 2UL})
    EXPECT_THAT(outcomes[rank].text, AllOf(StartsWith("error deadline_exceeded"), HasSubstr("waited for rank 1")));
}

TEST_P(Faults, AMessageThatNeverComesIsGivenUp) {
  const std::string place = free_loopback_place();
  Ranks ranks(2, [&](int rank) -> std::string {
    const auto communicator = Communicator::connect(options(rank, 2, place, 1));
    std::vector<std::byte> data(100);
    while (rank == 1) ::pause();
    communicator->world().receive(data, 1, 77).wait();
    return "no error";
  });
  EXPECT_TRUE(ranks.wait_for_end(0));
  ranks.signal(1, SIGKILL);
  EXPECT_THAT(ranks.wait()[0].text, AllOf(StartsWith("error deadline_exceeded"), HasSubstr("receive of 100 bytes from rank 1 with tag 77"),
                                          HasSubstr("waited for rank 1")));
}

TEST_P(Faults, DifferentCollectivesAreReportedWithBothSides) {
  const std::string place = free_loopback_place();
  Ranks ranks(3, [&](int rank) -> std::string {
    const auto communicator = Communicator::connect(options(rank, 3, place, 20));
    const Group group = communicator->group({0, 1, 2}, "weights");
    std::vector<float> data(64);
    group.barrier().wait();
    if (rank == 1) {
      group.broadcast(data.data(), 64, DataType::f32, 0).wait();
    } else {
      group.all_reduce(data.data(), 64, DataType::f32).wait();
    }
    group.barrier().wait();
    return "no error";
  });
  for (const auto& outcome : ranks.wait()) {
    EXPECT_THAT(outcome.text,
                AllOf(StartsWith("error internal"), HasSubstr("'weights'"), HasSubstr("rank 1 joined broadcast #1 of 64 f32 from rank 0"),
                      HasSubstr("joined all_reduce #1 of 64 f32 (sum)")));
  }
}

TEST_P(Faults, DifferentSizesAreReported) {
  const std::string place = free_loopback_place();
  Ranks ranks(2, [&](int rank) -> std::string {
    const auto communicator = Communicator::connect(options(rank, 2, place, 20));
    std::vector<float> data(100000);
    communicator->world().all_reduce(data.data(), rank == 0 ? 100000 : 99999, DataType::f32).wait();
    return "no error";
  });
  for (const auto& outcome : ranks.wait())
    EXPECT_THAT(outcome.text, AllOf(StartsWith("error internal"), HasSubstr("rank 0"), HasSubstr("rank 1")));
}

TEST_P(Faults, AbortReachesAllRanksWithTheReason) {
  const std::string place = free_loopback_place();
  Ranks ranks(3, [&](int rank) -> std::string {
    const auto communicator = Communicator::connect(options(rank, 3, place));
    if (rank == 1) {
      communicator->abort("the loss is not a number");
      return "aborted";
    }
    communicator->world().barrier().wait();
    return "no error";
  });
  const auto outcomes = ranks.wait();
  for (const std::size_t rank : {0UL, 2UL})
    EXPECT_THAT(outcomes[rank].text, AllOf(StartsWith("error peer_lost"), HasSubstr("rank 1 ended the task: the loss is not a number")));
}

TEST_P(Faults, WhoeverAsksIsToldOfAFailureAndAlsoOfOneThatIsPast) {
  const std::string place = free_loopback_place();
  Ranks ranks(2, [&](int rank) -> std::string {
    const auto communicator = Communicator::connect(options(rank, 2, place));
    std::promise<std::string> told;
    std::once_flag once;
    communicator->on_failure([&](const Error& error) { std::call_once(once, [&] { told.set_value(error.message()); }); });
    if (rank == 1) communicator->abort("the loss is not a number");
    // No operation of this rank is under way.
    std::string heard = told.get_future().get();
    std::string again;
    communicator->on_failure([&](const Error& error) { again = error.message(); });
    communicator->on_failure({});
    return heard + "; " + again;
  });
  for (const auto& outcome : ranks.wait()) {
    const std::string words = "rank 1 ended the task: the loss is not a number";
    EXPECT_EQ(outcome.text, words + "; " + words);
  }
}

TEST_P(Faults, ClosingWhileOthersWaitIsALoss) {
  for (const int leaver : {0, 1}) {
    const std::string place = free_loopback_place();
    Ranks ranks(3, [&](int rank) -> std::string {
      const auto communicator = Communicator::connect(options(rank, 3, place));
      std::vector<float> data(64, 1.0F);
      communicator->world().all_reduce(data.data(), 64, DataType::f32).wait();
      if (rank == leaver) throw Error(ErrorCode::invalid_config, "this rank gives up");
      communicator->world().all_reduce(data.data(), 64, DataType::f32).wait();
      return "no error";
    });
    const auto outcomes = ranks.wait(std::chrono::seconds(30));
    for (int rank = 0; rank < 3; ++rank) {
      const std::string& text_of_rank = outcomes[static_cast<std::size_t>(rank)].text;
      if (rank == leaver) {
        EXPECT_THAT(text_of_rank, HasSubstr("this rank gives up"));
      } else {
        EXPECT_THAT(text_of_rank, AllOf(StartsWith("error peer_lost"), HasSubstr(text("rank ", leaver)))) << "rank " << rank;
      }
    }
  }
}

// What a rank sent or joined before it closed still counts, however late the others are.
TEST_P(Faults, ClosingEarlyDoesNotUndoWhatWasDone) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    const std::string place = free_loopback_place();
    Ranks ranks(3, [&](int rank) -> std::string {
      const auto communicator = Communicator::connect(options(rank, 3, place));
      const Group world = communicator->world();
      std::vector<std::byte> data(rank == 2 ? 40000 : 40000, static_cast<std::byte>(rank + 1));
      Handle broadcast = world.broadcast(data.data(), data.size(), DataType::u8, 2);
      std::vector<std::byte> message(5000, static_cast<std::byte>(7));
      broadcast.wait();
      if (rank == 2) {
        world.send(message, 0, 1).wait();
        return "ok";
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (rank == 0) world.receive(message, 2, 1).wait();
      return data.back() == static_cast<std::byte>(3) ? "ok" : "wrong data";
    });
    for (const auto& outcome : ranks.wait()) EXPECT_EQ(outcome.text, "ok");
  }
}

TEST_P(Faults, FormingAgainAndAgainLeaksNothing) {
  const std::string place = free_loopback_place();
  const auto count_of = [](const char* path) {
    std::size_t entries = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      entries += entry.path().empty() ? 0 : 1;
    }
    return entries;
  };
  const auto files = [] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) names.insert(entry.path().filename());
    return names;
  };
  const std::set<std::string> files_before = files();
  Ranks ranks(2, [&](int rank) -> std::string {
    std::size_t descriptors = 0;
    std::size_t threads = 0;
    for (int round = 0; round < 100; ++round) {
      {
        const auto communicator = Communicator::connect(options(rank, 2, place));
        float value = 1;
        communicator->world().all_reduce(&value, 1, DataType::f32).wait();
        if (value != 2.0F) return "wrong sum";
      }
      if (round == 5) {
        descriptors = count_of("/proc/self/fd");
        threads = count_of("/proc/self/task");
      }
    }
    const std::size_t now = count_of("/proc/self/fd");
    if (now > descriptors || count_of("/proc/self/task") > threads)
      return text("leaked: ", descriptors, " descriptors became ", now, ", ", threads, " threads ", count_of("/proc/self/task"));
    return "ok";
  });
  for (const auto& outcome : ranks.wait(std::chrono::seconds(200))) EXPECT_EQ(outcome.text, "ok");
  // Other programs have theirs, but do not keep them for so long.
  std::set<std::string> left = files();
  for (const std::string& name : files_before) left.erase(name);
  for (int tries = 0; tries < 600 && !left.empty(); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const std::set<std::string> now = files();
    std::erase_if(left, [&](const std::string& name) { return !now.contains(name); });
  }
  EXPECT_THAT(left, ::testing::IsEmpty());
}

TEST_P(Faults, AGroupThatCannotBeIsRefused) {
  const std::string place = free_loopback_place();
  Ranks ranks(2, [&](int rank) -> std::string {
    const auto communicator = Communicator::connect(options(rank, 2, place));
    std::string refused;
    for (const std::vector<int>& members : {std::vector<int>{0, 1, 2}, {-1, 0, 1}, {0, 1, 1}, {1 - rank}, {}}) try {
        communicator->group(members, "none");
        return "formed";
      } catch (const Error& error) {
        refused += error.message().substr(error.message().find('[')) + " ";
      }
    return refused;
  });
  const auto outcomes = ranks.wait();
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)].text, text("[0 1 2] [-1 0 1] [0 1 1] [", 1 - rank, "] [] "));
}

TEST(FaultsOnTwoLevels, AKilledRankIsNamedByAllOthersWithoutATimeout) {
  for (const int victim : {1, 2}) {
    const std::string place = free_loopback_place();
    expect_heard(4, victim, [&](int rank) {
      Options options = testing::options(rank, 4, place, kFarAway);
      options.heartbeat_timeout = Seconds(kFarAway);
      options.host = rank < 2 ? "a" : "b";
      const auto communicator = Communicator::connect(options);
      std::vector<float> data(1 << 18);
      communicator->world().all_reduce(data.data(), data.size(), DataType::f32).wait();
      testing::report("running");
      while (true) communicator->world().all_reduce(data.data(), data.size(), DataType::f32).wait();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Faults, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "shared" : "network"; });

TEST(WorldOfOne, NeedsNoPlaceToMeet) {
  Options options;
  const auto communicator = Communicator::connect(options);
  float value = 3;
  communicator->world().all_reduce(&value, 1, DataType::f32).wait();
  EXPECT_EQ(value, 3);
  std::vector<std::byte> out(10, std::byte{5});
  std::vector<std::byte> in(10);
  const Handle receive = communicator->world().receive(in, 0, 1);
  EXPECT_FALSE(receive.done());
  communicator->world().send(out, 0, 1).wait();
  receive.wait();
  EXPECT_EQ(in, out);
}

}  // namespace
}  // namespace tessera::comm
