#include "control/call_in.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/clock.hpp"
#include "base/expect_error.hpp"
#include "base/secret.hpp"

namespace tessera::control {
namespace {

using tessera::testing::error_of;

// Lets agents in on another thread until it is destroyed.
class Doorman {
 public:
  explicit Doorman(const std::string& secret) : reception_(secret), thread_([this] { work(); }) {}
  ~Doorman() {
    leaving_ = true;
    thread_.join();
  }
  const std::vector<std::string>& places() const { return reception_.places(); }
  int admitted() const { return admitted_; }

 private:
  void work() {
    std::vector<Reception::Caller> callers;
    while (!leaving_) {
      std::vector<pollfd> watched;
      reception_.watch(watched);
      ::poll(watched.data(), watched.size(), 10);
      for (Reception::Caller& caller : reception_.admit()) {
        caller.line.send(Tell{.kill = true});
        callers.push_back(std::move(caller));
        ++admitted_;
      }
    }
  }
  Reception reception_;
  std::atomic<bool> leaving_ = false;
  std::atomic<int> admitted_ = 0;
  std::thread thread_;
};

std::optional<AgentMessage> first_message(Line& line) {
  for (int i = 0; i < 500; ++i) {
    line.pump();
    if (auto message = line.next()) return message;
    real_clock().sleep(Seconds(0.01));
  }
  return std::nullopt;
}

TEST(CallIn, ALauncherAndAnAgentThatKnowTheSecretMeet) {
  const std::string secret = make_secret();
  const Doorman doorman(secret);
  ASSERT_EQ(doorman.places().back().substr(0, 10), "127.0.0.1:");
  Line line = call({doorman.places().back()}, secret, Seconds(10));
  const auto message = first_message(line);
  ASSERT_TRUE(message && std::holds_alternative<Tell>(*message));
  EXPECT_TRUE(std::get<Tell>(*message).kill);
  EXPECT_EQ(doorman.admitted(), 1);
}

// Both sides refuse: the agent does not start what somebody says who has another secret, and the launcher does not hear it.
TEST(CallIn, WhoHasAnotherSecretIsPassedOver) {
  const std::string secret = make_secret();
  const Doorman other(make_secret());
  const Doorman right(secret);
  EXPECT_EQ(error_of([&] { call({other.places().back()}, secret, Seconds(0.1)); }).code(), ErrorCode::deadline_exceeded);
  Line line = call({other.places().back(), right.places().back()}, secret, Seconds(10));
  EXPECT_TRUE(first_message(line));
  EXPECT_EQ(other.admitted(), 0);
}

TEST(CallIn, WhoProvesNothingIsNotHeard) {
  const Doorman doorman(make_secret());
  comm::Descriptor connection = comm::connect_once(comm::parse_host_port(doorman.places().back()), std::chrono::seconds(5));
  Line line(std::move(connection), {});
  line.send(Hello{.version = "0", .host = "evil", .node = {}, .address = {}, .cluster = {}});
  for (int i = 0; i < 100 && line.pump(); ++i) real_clock().sleep(Seconds(0.02));
  EXPECT_FALSE(line.pump());
  EXPECT_EQ(doorman.admitted(), 0);
}

TEST(CallIn, SaysWhereNobodyAnswered) {
  const Error error = error_of([] { call({"127.0.0.1:1"}, make_secret(), Seconds(0.2)); });
  EXPECT_THAT(error.message(), ::testing::HasSubstr("answers at none of 127.0.0.1:1"));
}

}  // namespace
}  // namespace tessera::control
