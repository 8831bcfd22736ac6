#include "base/free_port.hpp"

#include <gtest/gtest.h>
#include <fstream>
#include <set>

namespace tessera {
namespace {

TEST(FreePort, IsNoneThatTheKernelHandsOut) {
  int first = 0;
  int last = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first >> last;
  ASSERT_GT(last, first);
  if (first <= 10'000 && last >= 65'535) GTEST_SKIP() << "here the kernel hands out all ports";
  std::set<int> seen;
  for (int i = 0; i < 200; ++i) {
    const int port = free_port();
    EXPECT_TRUE(port < first || port > last) << port;
    seen.insert(port);
  }
  // Two jobs that start at once seldom choose the same.
  EXPECT_GT(seen.size(), 190u);
}

}  // namespace
}  // namespace tessera
