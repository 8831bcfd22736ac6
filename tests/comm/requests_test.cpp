#include "comm/requests.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "base/free_port.hpp"
#include "base/secret.hpp"
#include "comm/sockets.hpp"

namespace tessera::comm {
namespace {

using testing::HasSubstr;

// A server on a thread of its own.
class Running {
 public:
  explicit Running(RequestServer::Answer answer, std::string secret = "", std::string at = free_loopback_place())
      : place(std::move(at)), secret_(std::move(secret)) {
    std::promise<void> listening;
    thread_ = std::jthread([this, answer = std::move(answer), &listening](const std::stop_token& stop) {
      RequestServer server(place, secret_);
      listening.set_value();
      server.serve(answer, stop);
    });
    listening.get_future().wait();
  }
  void stop() {
    thread_.request_stop();
    thread_.join();
  }
  const std::string place;

 private:
  std::string secret_;
  std::jthread thread_;
};

std::size_t echo(const RequestServer::Request& request, std::span<std::byte> reply) {
  std::ranges::copy(request.bytes, reply.begin());
  return request.bytes.size();
}

void ask(RequestClient& client, std::size_t server, std::size_t bytes, int seed) {
  const std::span<std::byte> request = client.next_request(server);
  for (std::size_t i = 0; i < bytes; ++i) request[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(seed));
  client.send(server, bytes);
}

void expect_echo(RequestClient& client, std::size_t server, std::size_t bytes, int seed) {
  const std::span<const std::byte> reply = client.take_reply(server);
  ASSERT_EQ(reply.size(), bytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(reply.data()) % 16, 0u);
  for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(reply[i], static_cast<std::byte>(i * 7 + static_cast<std::size_t>(seed)));
}

std::string problem_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(Requests, OfEverySizeComeBackInOrderFromSeveralServers) {
  // The second one is at every address, and so is reached over TCP from this host, too.
  const std::string secret = make_secret(), port = free_loopback_place().substr(std::strlen("127.0.0.1"));
  Running first(echo, secret), second(echo, secret, "0.0.0.0" + port);
  RequestClient client({first.place, "127.0.0.1" + port}, secret, {});
  const std::vector<std::size_t> sizes = {0, 1, 15, 16, 100, 8'000, 9'000, 70'000, 300'000, kMostMessageBytes};
  for (std::size_t begin = 0; begin < sizes.size(); begin += 2) {
    for (std::size_t i = begin; i < begin + 2; ++i)
      for (const std::size_t server : {0, 1}) ask(client, server, sizes[i], static_cast<int>(i + server));
    for (std::size_t i = begin; i < begin + 2; ++i)
      for (const std::size_t server : {1, 0}) expect_echo(client, server, sizes[i], static_cast<int>(i + server));
  }
  EXPECT_EQ(client.under_way(0), 0u);
}

TEST(Requests, GoPastTcpOnOneHost) {
  const std::string place = free_loopback_place();
  const HostPort at = parse_host_port(place);
  const Descriptor tcp = listen_at(at);
  const auto connection = [&] { return connect_once(at, std::chrono::milliseconds(1000)); };
  EXPECT_FALSE(connect_beside(connection())) << "nobody listens there";
  {
    const Descriptor beside = listen_beside(tcp);
    ASSERT_TRUE(beside);
    EXPECT_FALSE(listen_beside(tcp)) << "the name is taken";
    const Descriptor client = connect_beside(connection());
    ASSERT_TRUE(client);
    const Descriptor server = accept_from(beside);
    ASSERT_TRUE(server);
    ASSERT_EQ(::send(client.get(), "past", 4, MSG_NOSIGNAL), 4);
    std::array<char, 8> came{};
    ASSERT_TRUE(wait_readable(server.get(), std::chrono::milliseconds(1000)));
    EXPECT_EQ(::recv(server.get(), came.data(), came.size(), 0), 4);
    EXPECT_STREQ(came.data(), "past");
  }
  EXPECT_FALSE(connect_beside(connection())) << "it is closed";
  EXPECT_TRUE(listen_beside(tcp)) << "and its name is free";
}

TEST(Requests, ManyClientsAskAtOnceAndEachIsAnother) {
  std::map<std::uint64_t, int> asked;  // of the server's thread
  Running server([&](const RequestServer::Request& request, std::span<std::byte> reply) {
    const int count = ++asked[request.client];
    std::memcpy(reply.data(), &count, sizeof count);
    return sizeof count;
  });
  std::vector<std::jthread> clients;
  for (int i = 0; i < 4; ++i)
    clients.emplace_back([&] {
      RequestClient client({server.place}, "", {});
      for (int turn = 1; turn <= 200; ++turn) {
        client.send(0, 8);
        int count = 0;
        std::memcpy(&count, client.take_reply(0).data(), sizeof count);
        ASSERT_EQ(count, turn);
      }
    });
  clients.clear();
  server.stop();
  EXPECT_EQ(asked.size(), 4u);
}

TEST(Requests, WhatAnAnswerThrowsIsThrownAtTheClientAndTheServerGoesOn) {
  Running server([](const RequestServer::Request& request, std::span<std::byte> reply) -> std::size_t {
    if (request.bytes.empty()) throw Error(ErrorCode::not_found, "there is no table 7", {}, "a table", "open it");
    return echo(request, reply);
  });
  RequestClient client({server.place}, "", {});
  client.send(0, 0);
  const std::string problem = problem_of([&] { client.take_reply(0); }, ErrorCode::not_found);
  EXPECT_THAT(problem, testing::AllOf(HasSubstr(server.place), HasSubstr("there is no table 7"), HasSubstr("open it")));
  ask(client, 0, 10, 3);
  expect_echo(client, 0, 10, 3);
}

TEST(Requests, OnlyWhoKnowsTheSecretIsAnswered) {
  const std::string secret = make_secret();
  Running server(echo, secret);
  EXPECT_THAT(problem_of([&] { RequestClient({server.place}, make_secret(), {}); }, ErrorCode::invalid_config),
              HasSubstr("do not have the same secret"));
  EXPECT_THAT(problem_of([&] { RequestClient({server.place}, "", {}); }, ErrorCode::invalid_config),
              HasSubstr("do not have the same secret"));
  // Who talks nonsense, or says nothing, holds up nobody.
  const Descriptor nonsense = connect_once(parse_host_port(server.place), std::chrono::milliseconds(1000)),
                   silent = connect_once(parse_host_port(server.place), std::chrono::milliseconds(1000));
  ASSERT_TRUE(nonsense && silent);
  ASSERT_EQ(::send(nonsense.get(), "\x05\0\0\0hello", 9, MSG_NOSIGNAL), 9);
  RequestClient client({server.place}, secret, {});
  ask(client, 0, 10, 3);
  expect_echo(client, 0, 10, 3);
}

TEST(Requests, AServerWithoutASecretStaysOnTheLoopback) {
  EXPECT_THAT(problem_of([] { RequestServer("0.0.0.0:29400", ""); }, ErrorCode::invalid_config), HasSubstr("has no secret"));
}

TEST(Requests, TellWhichServerIsGone) {
  std::optional<Running> server(echo);
  const std::string place = server->place;
  RequestClient client({place}, "", {});
  ask(client, 0, 10, 3);
  expect_echo(client, 0, 10, 3);
  server.reset();
  EXPECT_THAT(problem_of(
                  [&] {
                    ask(client, 0, 10, 3);
                    client.take_reply(0);
                  },
                  ErrorCode::peer_lost),
              HasSubstr(place));
  EXPECT_THAT(problem_of([&] { RequestClient({place}, "", {.deadline = Seconds(0.1)}); }, ErrorCode::deadline_exceeded),
              HasSubstr(place + " was not there within"));
}

TEST(Requests, AServerThatDoesNotAnswerIsNamedAtTheDeadline) {
  std::atomic<bool> go_on = false;
  Running server([&](const RequestServer::Request& request, std::span<std::byte> reply) {
    while (!go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return echo(request, reply);
  });
  {
    RequestClient client({server.place}, "", {.deadline = Seconds(0.2)});
    ask(client, 0, 10, 3);
    EXPECT_THAT(problem_of([&] { client.take_reply(0); }, ErrorCode::deadline_exceeded),
                HasSubstr(server.place + " has not answered within 200.0 ms"));
  }
  go_on = true;
  // The reply to a client that is gone holds up nobody.
  RequestClient client({server.place}, "", {});
  ask(client, 0, 10, 3);
  expect_echo(client, 0, 10, 3);
}

TEST(Requests, ClientsThatLeaveInTheMiddleHoldUpNobody) {
  Running server(echo);
  for (int turn = 0; turn < 20; ++turn) {
    RequestClient client({server.place}, "", {});
    for (int i = 0; i < 4; ++i) ask(client, 0, 200'000, i);
    if (turn % 2 == 0) expect_echo(client, 0, 200'000, 0);
  }
  RequestClient client({server.place}, "", {});
  ask(client, 0, 200'000, 3);
  expect_echo(client, 0, 200'000, 3);
}

}  // namespace
}  // namespace tessera::comm
