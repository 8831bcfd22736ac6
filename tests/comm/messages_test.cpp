// Messages between two ranks: every test runs through shared memory and over the network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "base/hash.hpp"
#include "comm/processes.hpp"

namespace tessera::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Ranks;
using ::testing::StartsWith;

using Bytes = std::vector<std::byte>;

// Different for every message, and at every place of one.
Bytes message(std::uint64_t name, std::size_t size) {
  Bytes data(size);
  for (std::size_t at = 0; at < size; at += 8) {
    const std::uint64_t word = seed_of(name, at);
    std::memcpy(data.data() + at, &word, std::min<std::size_t>(8, size - at));
  }
  return data;
}

void check(bool good, const std::string& what) {
  if (!good) throw Error(ErrorCode::internal, "wrong message: " + what);
}

class Messages : public ::testing::TestWithParam<bool> {
 protected:
  using Body = std::function<std::string(Communicator&)>;
  Ranks start(int count, const Body& body, double deadline = 60) {
    const std::string place = free_loopback_place();
    return Ranks(count, [&, place](int rank) {
      Options options = testing::options(rank, count, place, deadline);
      options.shared_memory = GetParam();
      const auto communicator = Communicator::connect(options);
      return body(*communicator);
    });
  }
  void expect_all_ok(int count, const Body& body) {
    Ranks ranks = start(count, body);
    for (const auto& outcome : ranks.wait()) EXPECT_EQ(outcome.text, "ok") << "signal " << outcome.signal;
  }
};

TEST_P(Messages, OfAnySizeArriveWhole) {
  expect_all_ok(2, [](Communicator& communicator) -> std::string {
    const Group world = communicator.world();
    const int peer = 1 - world.rank();
    // Around the limits of what lies in a slot, in one piece and in all pieces.
    for (const std::size_t size :
         {0UL, 1UL, 63UL, 4095UL, 4096UL, 4097UL, 32767UL, 32768UL, 32769UL, 100000UL, 524288UL, 524289UL, 3000001UL, 20000003UL}) {
      for (int turn = 0; turn < 2; ++turn) {
        const Bytes expected = message(size * 2 + static_cast<std::size_t>(turn), size);
        Bytes data = turn == world.rank() ? expected : Bytes(size);
        (turn == world.rank() ? world.send(data, peer, 3) : world.receive(data, peer, 3)).wait();
        check(data == expected, text(size, " bytes"));
      }
    }
    return "ok";
  });
}

// Both directions at once, many tags and two groups, waited for in an order of each rank's own.
TEST_P(Messages, OfManyTagsFindTheirReceives) {
  expect_all_ok(3, [](Communicator& communicator) -> std::string {
    const Group groups[] = {communicator.world(), communicator.group({2, 1, 0}, "turned")};
    struct One {
      int group;
      int peer;
      std::uint32_t tag;
      std::size_t index;
      bool receiving;
    };
    constexpr std::uint32_t kTags = 40;
    constexpr std::size_t kEach = 3;
    std::vector<One> all;
    for (int group = 0; group < 2; ++group) {
      for (int peer = 0; peer < 3; ++peer) {
        for (std::uint32_t tag = 0; tag < kTags; ++tag) {
          for (std::size_t index = 0; index < kEach; ++index) {
            all.push_back({group, peer, tag, index, false});
            all.push_back({group, peer, tag, index, true});
          }
        }
      }
    }
    std::mt19937_64 random(static_cast<std::uint64_t>(communicator.rank()));
    std::shuffle(all.begin(), all.end(), random);
    // Messages of equal tags keep their order; all others come in any.
    std::stable_sort(all.begin(), all.end(), [](const One& a, const One& b) { return a.index < b.index; });
    const auto content = [](const One& one, int from, int to) {
      const std::uint64_t name =
          ((static_cast<std::uint64_t>(one.group * 3 + from) * 3 + static_cast<std::uint64_t>(to)) * kTags + one.tag) * kEach + one.index;
      return message(name, name % 5 == 0 ? 40000 + name * 13 : name % 6000);
    };
    std::vector<Bytes> data(all.size());
    std::vector<Bytes> expected(all.size());
    std::vector<Handle> handles(all.size());
    std::vector<std::size_t> order(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Group& group = groups[all[i].group];
      const int me = group.rank();
      order[i] = i;
      expected[i] = all[i].receiving ? content(all[i], all[i].peer, me) : content(all[i], me, all[i].peer);
      data[i] = all[i].receiving ? Bytes(expected[i].size()) : expected[i];
      handles[i] = all[i].receiving ? group.receive(data[i], all[i].peer, all[i].tag) : group.send(data[i], all[i].peer, all[i].tag);
    }
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t i : order) {
      handles[i].wait();
      check(data[i] == expected[i], text("tag ", all[i].tag, " from ", all[i].peer));
    }
    return "ok";
  });
}

// A message that nobody has asked for yet must not hold up the others, however it is sent.
TEST_P(Messages, OvertakeThoseThatAreReceivedLater) {
  for (const std::size_t size : {0UL, 100UL, 100000UL, 1000000UL}) {
    expect_all_ok(2, [size](Communicator& communicator) -> std::string {
      const Group world = communicator.world();
      constexpr std::uint32_t kTags = 30;
      for (std::uint32_t tag = 0; tag < kTags; ++tag) {
        if (world.rank() == 0) world.send(message(tag, size), 1, tag).wait();
      }
      for (std::uint32_t tag = kTags; world.rank() == 1 && tag-- > 0;) {
        Bytes data(size);
        world.receive(data, 0, tag).wait();
        check(data == message(tag, size), text("tag ", tag));
      }
      // What was sent before a rank closes is only kept for a second.
      world.barrier().wait();
      return "ok";
    });
  }
}

// More than the announcements that fit, and more than a small message's place.
TEST_P(Messages, MayAllBeSentBeforeAnyIsReceived) {
  expect_all_ok(2, [](Communicator& communicator) -> std::string {
    const Group world = communicator.world();
    const int peer = 1 - world.rank();
    const auto size_of_message = [](std::uint64_t index) { return index % 4 == 0 ? 20000 + index : index; };
    constexpr std::uint64_t kCount = 300;
    for (std::uint64_t index = 0; index < kCount; ++index) {
      Bytes data = message(index + 1000 * static_cast<std::uint64_t>(world.rank()), size_of_message(index));
      world.send(data, peer, 1).wait();
      std::fill(data.begin(), data.end(), std::byte{0});
    }
    for (std::uint64_t index = 0; index < kCount; ++index) {
      Bytes data(size_of_message(index));
      world.receive(data, peer, 1).wait();
      check(data == message(index + 1000 * static_cast<std::uint64_t>(peer), data.size()), text("number ", index));
    }
    return "ok";
  });
}

// Threads that wait for messages and for collectives at once take turns at driving them.
TEST_P(Messages, AndCollectivesOfSeveralThreadsRunSideBySide) {
  expect_all_ok(2, [](Communicator& communicator) -> std::string {
    const int peer = 1 - communicator.rank();
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (std::uint32_t number = 0; number < 3; ++number) {
      threads.emplace_back([&, number] {
        const Group group = communicator.group({0, 1}, text("of thread ", number));
        for (std::uint64_t turn = 0; turn < 100; ++turn) {
          const std::size_t size = turn % 3 * 30000 + 10;
          Bytes in(size);
          const Bytes out = message(turn * 2 + static_cast<std::uint64_t>(group.rank()), size);
          const Handle receive = group.receive(in, peer, number);
          const Handle send = group.send(out, peer, number);
          float value = 1;
          group.all_reduce(&value, 1, DataType::f32).wait();
          receive.wait();
          send.wait();
          wrong += value != 2.0F || in != message(turn * 2 + static_cast<std::uint64_t>(peer), size);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return wrong == 0 ? "ok" : text(wrong.load(), " wrong");
  });
}

TEST_P(Messages, OfAnotherSizeAreReported) {
  for (const auto& [sent, expected] : {std::pair{100UL, 99UL}, std::pair{0UL, 1UL}, std::pair{200000UL, 200001UL}}) {
    Ranks ranks = start(2, [sent = sent, expected = expected](Communicator& communicator) -> std::string {
      Bytes data(communicator.rank() == 0 ? sent : expected);
      if (communicator.rank() == 0) communicator.world().send(data, 1, 8).wait();
      if (communicator.rank() == 1) communicator.world().receive(data, 0, 8).wait();
      communicator.world().barrier().wait();
      return "no error";
    });
    for (const auto& outcome : ranks.wait()) {
      EXPECT_THAT(outcome.text, AllOf(StartsWith("error internal"), HasSubstr("rank 0 sent "),
                                      HasSubstr(text("where rank 1 expected ", expected, " bytes")), HasSubstr("with tag 8")));
    }
  }
}

// A very large message waits for its receive; its sender does not wait for ever.
TEST_P(Messages, ThatNobodyReceivesAreGivenUp) {
  Ranks ranks = start(
      2,
      [](Communicator& communicator) -> std::string {
        Bytes data(20 << 20);
        if (communicator.rank() == 0) communicator.world().send(data, 1, 4).wait();
        std::this_thread::sleep_for(std::chrono::seconds(3));
        return "slept";
      },
      1);
  EXPECT_THAT(ranks.wait()[0].text, AllOf(StartsWith("error deadline_exceeded"), HasSubstr("send of 20971520 bytes to rank 1 with tag 4"),
                                          HasSubstr("waited for rank 1")));
}

// The sender or the receiver of a stream of large messages is killed or stopped in the midst of one.
TEST_P(Messages, FromOrToALostRankEnd) {
  for (const int victim : {0, 1}) {
    for (const int number : {SIGKILL, SIGSTOP}) {
      Ranks ranks = start(
          2,
          [](Communicator& communicator) -> std::string {
            Bytes data(30 << 20);
            for (int turn = 0;; ++turn) {
              if (turn == 1) testing::report("running");
              (communicator.rank() == 0 ? communicator.world().send(data, 1, 4) : communicator.world().receive(data, 0, 4)).wait();
            }
          },
          number == SIGSTOP ? 2 : 60);
      for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(ranks.wait_for_line(rank, "running"));
      ranks.signal(victim, number);
      EXPECT_TRUE(ranks.wait_for_end(1 - victim, std::chrono::seconds(20)));
      ranks.signal(victim, SIGKILL);
      const auto outcomes = ranks.wait();
      EXPECT_THAT(outcomes[static_cast<std::size_t>(1 - victim)].text,
                  AllOf(StartsWith(number == SIGKILL ? "error peer_lost" : "error deadline_exceeded"), HasSubstr(text("rank ", victim))));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Messages, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "shared" : "network"; });

}  // namespace
}  // namespace tessera::comm
