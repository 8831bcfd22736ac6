#include "comm/frames.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/expect_error.hpp"

namespace tessera::comm {
namespace {

// The kernel hands out the ports of a range one after another, so that some attempt is given the port that it connects to.
TEST(Frames, AConnectionNeverMeetsItself) {
  Descriptor chosen(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(chosen.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(chosen.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  // Linux takes odd ones for who binds, and even ones for who connects.
  const HostPort place = parse_host_port(text("127.0.0.1:", ntohs(address.sin_port) / 2 * 2));
  chosen = Descriptor();
  constexpr int kAttempts = 60'000;
  for (int i = 0; i < kAttempts; ++i) ASSERT_FALSE(connect_once(place, std::chrono::milliseconds(100))) << "attempt " << i;
}

std::string with_length(std::size_t length) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(length >> shift & 0xff));
  return bytes;
}

TEST(Frames, MessagesComeWholeHoweverTheirBytesArrive) {
  const std::string bytes = frame_of({{"a", 1}}) + frame_of({{"b", "x"}}) + frame_of(nlohmann::json::object());
  FrameBuffer buffer;
  std::vector<nlohmann::json> messages;
  for (const char byte : bytes) {
    ASSERT_GT(buffer.room(), 0U);
    buffer.append({&byte, 1});
    while (const auto message = buffer.next()) messages.push_back(*message);
  }
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(messages[1], (nlohmann::json{{"b", "x"}}));
}

TEST(Frames, ABufferHoldsNoMoreThanOneLongestMessage) {
  FrameBuffer buffer;
  EXPECT_EQ(buffer.room(), 4 + kLongestUnproven);
  buffer.append(with_length(kLongestUnproven));
  EXPECT_FALSE(buffer.next());
  buffer.append("{" + std::string(kLongestUnproven - 2, ' '));
  EXPECT_FALSE(buffer.next());
  buffer.append("}");
  EXPECT_EQ(buffer.room(), 0U);
  EXPECT_TRUE(buffer.next());
  EXPECT_EQ(buffer.room(), 4 + kLongestUnproven);
  buffer.append(with_length(kLongestUnproven + 1));
  EXPECT_THROW(buffer.next(), Error);
  buffer.set_longest(kLongestProven);
  EXPECT_FALSE(buffer.next());
}

TEST(Frames, WhatIsNoMessageIsRefused) {
  for (const std::string& body : {std::string("[]"), std::string("1"), std::string("{"), std::string(), std::string("{\"a\": \"\xff\"}"),
                                  "{\"a\": " + std::string(5000, '[') + std::string(5000, ']') + "}"}) {
    FrameBuffer buffer;
    buffer.append(with_length(body.size()) + body);
    EXPECT_EQ(tessera::testing::error_of([&] { buffer.next(); }).code(), ErrorCode::corrupt) << body.substr(0, 40);
  }
}

TEST(Frames, OnlyAddressesOfTheLoopbackAreLoopback) {
  for (const char* place : {"127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "localhost:1"})
    EXPECT_TRUE(is_loopback(parse_host_port(place))) << place;
  for (const char* place : {"0.0.0.0:1", "10.0.0.1:1", "128.0.0.1:1", "[::]:1", "[::ffff:10.0.0.1]:1", "[2001:db8::1]:1"})
    EXPECT_FALSE(is_loopback(parse_host_port(place))) << place;
}

}  // namespace
}  // namespace tessera::comm
