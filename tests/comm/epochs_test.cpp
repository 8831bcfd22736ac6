// Communicators that are formed again with other members, in the same processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <numeric>

#include "comm/processes.hpp"
#include "comm/rendezvous.hpp"

namespace tessera::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Ranks;
using ::testing::StartsWith;

class Epochs : public ::testing::TestWithParam<bool> {
 protected:
  Options options(int rank, int world, const std::string& place, std::int64_t epoch) {
    Options result = testing::options(rank, world, place, 30);
    result.shared_memory = GetParam();
    result.heartbeat_timeout = Seconds(2);
    result.epoch = epoch;
    return result;
  }
};

float sum_of(Communicator& communicator, float own) {
  std::vector<float> data(3000, own);
  communicator.world().all_reduce(data.data(), data.size(), DataType::f32).wait();
  return data.back();
}

TEST_P(Epochs, AGroupOfFourLosesOneGoesOnAsThreeAndAgainAsFour) {
  const std::vector<std::string> places = {free_loopback_place(), free_loopback_place(), free_loopback_place()};
  for (const int fault : {SIGKILL, SIGSTOP}) {
    constexpr int kVictim = 2;
    constexpr int kSpare = 4;
    Ranks ranks(5, [&](int process) -> std::string {
      // Ranks of three and of four: the others move up, and the spare one comes last.
      const int of_three = process > kVictim ? process - 1 : process;
      if (process != kSpare) {
        const auto communicator = Communicator::connect(options(process, 4, places[0], 0));
        if (sum_of(*communicator, 1) != 4) return "four do not add up";
        testing::report("running");
        try {
          while (true) sum_of(*communicator, 1);
        } catch (const Error& error) {
          if (error.where().rank != kVictim) throw;
          testing::report("heard");
        }
      }
      if (process != kSpare) {
        const auto communicator = Communicator::connect(options(of_three, 3, places[1], 1));
        for (int i = 0; i < 100; ++i)
          if (sum_of(*communicator, 1) != 3) return "three do not add up";
      }
      const auto communicator = Communicator::connect(options(process == kSpare ? 3 : of_three, 4, places[2], 2));
      for (int i = 0; i < 100; ++i)
        if (sum_of(*communicator, 1) != 4) return "four do not add up again";
      return "ok";
    });
    for (int process = 0; process < 4; ++process) ASSERT_TRUE(ranks.wait_for_line(process, "running"));
    ranks.signal(kVictim, fault);
    for (const int process : {0, 1, 3, 4}) EXPECT_TRUE(ranks.wait_for_end(process));
    ranks.signal(kVictim, SIGKILL);
    const auto outcomes = ranks.wait();
    for (const std::size_t process : {0UL, 1UL, 3UL, 4UL}) EXPECT_EQ(outcomes[process].text, "ok") << "process " << process;
  }
}

// A rank that was given up and wakes comes to where its task meets now.
TEST_P(Epochs, ARankOfAnEarlierEpochIsRefused) {
  const std::string place = free_loopback_place();
  Ranks ranks(3, [&](int process) -> std::string {
    // Process 2 is the late one; rank 1 comes after it.
    if (process == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    const auto communicator = Communicator::connect(options(process == 2 ? 1 : process, 2, place, process == 2 ? 6 : 7));
    return text(sum_of(*communicator, 1));
  });
  const auto outcomes = ranks.wait();
  EXPECT_EQ(outcomes[0].text, "2");
  EXPECT_EQ(outcomes[1].text, "2");
  EXPECT_THAT(outcomes[2].text,
              AllOf(StartsWith("error invalid_config"), HasSubstr("the ranks of task 'tessera' are in epoch 7, this rank is in epoch 6")));
}

INSTANTIATE_TEST_SUITE_P(Transports, Epochs, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "shared" : "network"; });

// What an earlier epoch's end says does not end this one. Ranks 0 and 2 wait for each other; rank 1 says what it does by hand.
TEST(EpochFrames, OfAnEarlierEpochAreDropped) {
  for (const bool old : {true, false}) {
    const std::string place = free_loopback_place();
    const auto in_epoch_3 = [&](int rank) {
      Options options = testing::options(rank, 3, place, 30);
      options.shared_memory = false;
      options.epoch = 3;
      return options;
    };
    Ranks ranks(2, [&](int process) -> std::string {
      const auto communicator = Communicator::connect(in_epoch_3(2 * process));
      std::byte byte{};
      communicator->group({0, 2}, "pair").receive({&byte, 1}, 1 - process, 1).wait();
      return "no error";
    });
    Meeting meeting = join_rendezvous(in_epoch_3(1), {"no address", "", 1, -1, 0});
    exchange_reached(in_epoch_3(1), meeting, {});
    meeting.sockets[0].send({{"kind", "failed"},
                             {"code", static_cast<int>(ErrorCode::internal)},
                             {"rank", 1},
                             {"message", "it is over"},
                             {"epoch", old ? 2 : 3}});
    meeting.sockets[0].flush();
    if (old) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    if (old) meeting.sockets[0].close();
    for (const auto& outcome : ranks.wait())
      EXPECT_THAT(outcome.text,
                  AllOf(StartsWith(old ? "error peer_lost" : "error internal"), HasSubstr(old ? "rank 1 is lost" : "it is over")));
  }
}

}  // namespace
}  // namespace tessera::comm
