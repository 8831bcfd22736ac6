#include "comm/frames.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/error.hpp"

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

}  // namespace
}  // namespace tessera::comm
