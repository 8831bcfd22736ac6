// How ranks find each other: who is let in, who is not, and what each of them is told.
#include "comm/rendezvous.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "base/secret.hpp"
#include "comm/processes.hpp"
#include "comm/proof.hpp"

namespace tessera::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Ranks;
using ::testing::StartsWith;

const std::string kSecret = "0123456789abcdef0123456789abcdef";
const std::string kOther = "fedcba9876543210fedcba9876543210";

Options options_with(int rank, int world, const std::string& place, const std::string& secret, double deadline = 60) {
  Options options = testing::options(rank, world, place, deadline);
  options.secret = secret;
  return options;
}

std::string meet_and_part(const Options& options) {
  const auto communicator = Communicator::connect(options);
  communicator->world().barrier().wait();
  return "ok";
}

// At an address that is not the loopback's alone, so that a secret is asked for.
std::string open_place() {
  const std::string place = free_loopback_place();
  return "0.0.0.0" + place.substr(place.find(':'));
}

// A process that is no rank, at the other end of a connection to the rendezvous.
class Raw {
 public:
  explicit Raw(const std::string& place) {
    const HostPort where = parse_host_port(place);
    for (int tries = 0; tries < 3000; ++tries) {
      if (Descriptor connection = connect_once(where, std::chrono::milliseconds(1000))) {
        socket_ = FrameSocket(std::move(connection));
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    throw Error(ErrorCode::io, "nobody listens at " + place);
  }
  FrameSocket& socket() { return socket_; }
  void say(const nlohmann::json& message) { socket_.send(message); }
  nlohmann::json hear() { return receive_one({}, socket_, 0, SteadyClock::now() + std::chrono::seconds(60)); }
  // Every byte that still comes until the other end closes.
  std::string rest() {
    std::string all;
    char buffer[4096];
    while (wait_readable(socket_.fd(), std::chrono::seconds(60))) {
      const ssize_t got = ::read(socket_.fd(), buffer, sizeof buffer);
      if (got <= 0) return all;
      all.append(buffer, static_cast<std::size_t>(got));
    }
    return "still open after a minute";
  }

 private:
  FrameSocket socket_;
};

TEST(Rendezvous, APortInUseIsExplained) {
  const std::string place = free_loopback_place();
  const int holder = testing::listen_at(place);
  Ranks ranks(1, [&](int) -> std::string {
    Communicator::connect(testing::options(0, 2, place, 5));
    return "met";
  });
  const std::string message = ranks.wait()[0].text;
  close(holder);
  EXPECT_THAT(message, AllOf(StartsWith("error io"), HasSubstr(place), HasSubstr("in use"), HasSubstr("choose another port")));
}

TEST(Rendezvous, AnotherTaskIsRefusedAndTheRightOneStillMeets) {
  const std::string place = free_loopback_place();
  Ranks ranks(3, [&](int process) -> std::string {
    Options options = testing::options(process == 2 ? 1 : process, 2, place);
    if (process == 2) options.task = "other";
    if (process == 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const auto communicator = Communicator::connect(options);
    communicator->world().barrier().wait();
    return "ok";
  });
  const auto outcomes = ranks.wait();
  EXPECT_EQ(outcomes[0].text, "ok");
  EXPECT_EQ(outcomes[1].text, "ok");
  EXPECT_THAT(outcomes[2].text, AllOf(StartsWith("error invalid_config"), HasSubstr("'tessera'"), HasSubstr("'other'")));
}

TEST(Rendezvous, AnotherWorldSizeIsRefused) {
  const std::string place = free_loopback_place();
  Ranks ranks(2, [&](int rank) -> std::string {
    Communicator::connect(testing::options(rank, rank == 0 ? 2 : 3, place, 2));
    return "ok";
  });
  EXPECT_THAT(ranks.wait()[1].text, AllOf(StartsWith("error invalid_config"), HasSubstr("2 ranks"), HasSubstr("3")));
}

TEST(Rendezvous, NamesTheRanksThatDidNotCome) {
  const std::string place = free_loopback_place();
  Ranks ranks(2, [&](int process) -> std::string {
    Communicator::connect(testing::options(process == 0 ? 0 : 2, 4, place, 2));
    return "met";
  });
  for (const auto& outcome : ranks.wait())
    EXPECT_THAT(outcome.text, AllOf(StartsWith("error deadline_exceeded"), HasSubstr("ranks 1, 3 did not come")));
}

TEST(Rendezvous, WithoutRankZeroEndsAtTheDeadline) {
  const std::string place = free_loopback_place();
  Ranks ranks(1, [&](int) -> std::string {
    Communicator::connect(testing::options(1, 2, place, 1));
    return "met";
  });
  EXPECT_THAT(ranks.wait()[0].text, AllOf(StartsWith("error deadline_exceeded"), HasSubstr("rank 0 did not come")));
}

TEST(Rendezvous, AWrongPlaceIsExplained) {
  for (const char* place : {"", "localhost", "localhost:", ":1", "localhost:70000", "localhost:x"}) {
    Ranks ranks(1, [&](int) -> std::string {
      Communicator::connect(testing::options(1, 2, place, 1));
      return "met";
    });
    EXPECT_THAT(ranks.wait()[0].text, AllOf(StartsWith("error invalid_config"), HasSubstr("HOST:PORT"))) << place;
  }
}

TEST(Rendezvous, RanksOfOneSecretMeetWhereOtherHostsCanReach) {
  const std::string place = open_place();
  Ranks ranks(3, [&](int rank) { return meet_and_part(options_with(rank, 3, place, kSecret)); });
  for (const auto& outcome : ranks.wait()) EXPECT_EQ(outcome.text, "ok");
}

TEST(Rendezvous, WithoutASecretOtherHostsMustNotReachIt) {
  const std::string place = open_place();
  Ranks ranks(2, [&](int rank) { return meet_and_part(options_with(rank, 2, place, {}, 5)); });
  for (const auto& outcome : ranks.wait())
    EXPECT_THAT(outcome.text, AllOf(StartsWith("error invalid_config"), HasSubstr("has no secret"), HasSubstr(place),
                                    HasSubstr("TESSERA_SECRET"), HasSubstr("TESSERA_SECRET_FILE"), HasSubstr("openssl rand -hex 32")));
}

TEST(Rendezvous, AnotherSecretIsRefusedAndTheRightOneStillMeets) {
  const std::string place = free_loopback_place();
  Ranks ranks(3, [&](int process) -> std::string {
    if (process == 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return meet_and_part(options_with(process == 2 ? 1 : process, 2, place, process == 2 ? kOther : kSecret));
  });
  const auto outcomes = ranks.wait();
  EXPECT_EQ(outcomes[0].text, "ok");
  EXPECT_EQ(outcomes[1].text, "ok");
  EXPECT_THAT(outcomes[2].text, AllOf(StartsWith("error invalid_config"), HasSubstr("does not know the secret of rank 1"), HasSubstr(place),
                                      HasSubstr("TESSERA_SECRET"), HasSubstr("launcher"), Not(HasSubstr(kSecret)), Not(HasSubstr(kOther)),
                                      Not(HasSubstr("tessera'"))));
}

TEST(Rendezvous, ARankWithoutTheSecretIsToldSo) {
  const std::string place = free_loopback_place();
  Ranks ranks(2, [&](int rank) { return meet_and_part(options_with(rank, 2, place, rank == 0 ? kSecret : "", 6)); });
  const auto outcomes = ranks.wait();
  EXPECT_THAT(outcomes[1].text, AllOf(StartsWith("error invalid_config"), HasSubstr("rank 1 has no secret"), HasSubstr(place)));
  EXPECT_THAT(outcomes[0].text, AllOf(StartsWith("error deadline_exceeded"), HasSubstr("rank 1 did not come"),
                                      HasSubstr("1 connection, from 127.0.0.1, did not prove to know the secret")));
}

TEST(Rendezvous, ARankLetsNoRankZeroLeadItThatDoesNotKnowTheSecret) {
  const std::string place = free_loopback_place();
  Ranks ranks(2, [&](int rank) { return meet_and_part(options_with(rank, 2, place, rank == 0 ? "" : kSecret)); });
  EXPECT_TRUE(ranks.wait_for_end(1));
  ranks.signal(0, SIGKILL);
  EXPECT_THAT(ranks.wait()[1].text, AllOf(StartsWith("error invalid_config"), HasSubstr("does not know the secret of rank 1")));
}

// Neither the task nor an address is said before the other end has proved that it is of the run.
TEST(Rendezvous, StrangersAreToldNothing) {
  const std::string place = free_loopback_place();
  Ranks ranks(1, [&](int) {
    Options options = options_with(0, 2, place, kSecret);
    options.task = "the name of the task";
    return meet_and_part(options);
  });
  Raw old(place);
  old.say({{"task", "?"}, {"rank", 1}, {"world", 2}});
  EXPECT_EQ(old.rest(), "");
  Raw polite(place);
  polite.say(to_json(Greeting{random_bytes(kNonceBytes)}));
  const nlohmann::json challenge = polite.hear();
  EXPECT_EQ(challenge.size(), 2U) << challenge;
  polite.say(to_json(Sealed{to_body(Claim{"?", 1, 2, {}}), std::string(kProofBytes, 'x')}));
  EXPECT_EQ(polite.rest(), "");
  // Sent away in the end.
  Raw silent(place);
  EXPECT_EQ(silent.rest(), "");
}

TEST(Rendezvous, AFalseRankZeroIsToldNothing) {
  const std::string place = free_loopback_place();
  const Descriptor listener = listen_at(parse_host_port(place));
  Ranks ranks(1, [&](int) {
    Options options = options_with(1, 2, place, kSecret, 20);
    options.task = "the name of the task";
    return meet_and_part(options);
  });
  ASSERT_TRUE(wait_readable(listener.get(), std::chrono::seconds(60)));
  FrameSocket rank(accept_from(listener));
  const nlohmann::json greeting = receive_one({}, rank, 1, SteadyClock::now() + std::chrono::seconds(60));
  EXPECT_EQ(greeting.size(), 2U) << greeting;
  rank.send(to_json(Challenge{std::string(kNonceBytes, 'n'), std::string(kProofBytes, 'p')}));
  EXPECT_THAT(ranks.wait()[0].text, AllOf(StartsWith("error invalid_config"), HasSubstr("does not know the secret")));
  EXPECT_THROW(receive_one({}, rank, 1, SteadyClock::now() + std::chrono::seconds(60)), Error);
}

// Ranks 1 and 2 come to rank 0 of three, which has let in nobody else.
void expect_others_still_meet(Ranks& first, const std::string& place) {
  Ranks others(2, [&](int process) { return meet_and_part(options_with(process + 1, 3, place, kSecret)); });
  for (const auto& outcome : others.wait()) EXPECT_EQ(outcome.text, "ok");
  EXPECT_EQ(first.wait()[0].text, "ok");
}

// What a rank said, said again by somebody who overheard it: to the same rank 0, which has drawn another number since.
TEST(Rendezvous, AReplayedProofProvesNothing) {
  const std::string place = free_loopback_place();
  Ranks first(1, [&](int) { return meet_and_part(options_with(0, 3, place, kSecret)); });
  Conversation talk{kSecret, random_bytes(kNonceBytes), {}};
  const std::string claim = to_body(Claim{"tessera", 1, 3, {"address", "", 1, -1, 0}});
  nlohmann::json said;
  {
    Raw rank(place);
    rank.say(to_json(Greeting{talk.rank_nonce}));
    talk.host_nonce = challenge_from(rank.hear()).nonce;
    said = to_json(Sealed{claim, proof_of(talk, Statement::claim, claim)});
    rank.say(said);
    // Let in, as nothing is said until all ranks are there; "is there already" is only said to another one.
    Raw again(place);
    Conversation second{kSecret, random_bytes(kNonceBytes), {}};
    again.say(to_json(Greeting{second.rank_nonce}));
    second.host_nonce = challenge_from(again.hear()).nonce;
    again.say(to_json(Sealed{claim, proof_of(second, Statement::claim, claim)}));
    EXPECT_THAT(sealed_from(again.hear()).body, HasSubstr("rank 1 is there already"));
  }
  Raw echo(place);
  echo.say(to_json(Greeting{talk.rank_nonce}));
  EXPECT_NE(challenge_from(echo.hear()).nonce, talk.host_nonce);
  echo.say(said);
  EXPECT_EQ(echo.rest(), "");
  expect_others_still_meet(first, place);
}

// The proof is over the claim: neither the rank nor the address in it can be exchanged on the way.
TEST(Rendezvous, AChangedClaimIsNotProved) {
  const std::string place = free_loopback_place();
  Ranks first(1, [&](int) { return meet_and_part(options_with(0, 3, place, kSecret)); });
  const Introduction self{"address", "", 1, -1, 0};
  const std::string claim = to_body(Claim{"tessera", 1, 3, self});
  for (const Claim& changed :
       {Claim{"tessera", 2, 3, self}, Claim{"tessera", 1, 2, self}, Claim{"tessera", 1, 3, {"elsewhere", "", 1, -1, 0}}}) {
    Raw rank(place);
    Conversation talk{kSecret, random_bytes(kNonceBytes), {}};
    rank.say(to_json(Greeting{talk.rank_nonce}));
    talk.host_nonce = challenge_from(rank.hear()).nonce;
    rank.say(to_json(Sealed{to_body(changed), proof_of(talk, Statement::claim, claim)}));
    EXPECT_EQ(rank.rest(), "");
  }
  expect_others_still_meet(first, place);
}

TEST(Rendezvous, AStrangerWithALongFrameIsSentAway) {
  const std::string place = free_loopback_place();
  Ranks ranks(2, [&](int rank) -> std::string {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    return meet_and_part(options_with(rank, 2, place, kSecret));
  });
  Raw stranger(place);
  const std::string length("\x01\x00\x01\x00", 4);  // 64 KiB and one more
  ASSERT_EQ(::write(stranger.socket().fd(), length.data(), length.size()), 4);
  EXPECT_EQ(stranger.rest(), "");
  for (const auto& outcome : ranks.wait()) EXPECT_EQ(outcome.text, "ok");
}

TEST(Rendezvous, StrangersWhoSayNothingDoNotKeepRanksOut) {
  const std::string place = free_loopback_place();
  Ranks ranks(4, [&](int rank) -> std::string {
    // Rank 0 listens until the strangers have come.
    if (rank > 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    return meet_and_part(options_with(rank, 4, place, kSecret));
  });
  std::vector<Raw> strangers;
  for (std::size_t i = 0; i < 4 * kMostStrangers; ++i) strangers.emplace_back(place);
  for (const auto& outcome : ranks.wait()) EXPECT_EQ(outcome.text, "ok");
}

}  // namespace
}  // namespace tessera::comm
