#include "base/free_port.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "base/error.hpp"

namespace tessera {
namespace {

bool is_free(int port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool bound = descriptor >= 0 && ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  if (descriptor >= 0) ::close(descriptor);
  return bound;
}

}  // namespace

int free_port() {
  constexpr int kFirst = 10'000;
  constexpr int kLast = 65'535;
  constexpr int kTries = 1'000;
  // What ip(7) says where the file cannot be read.
  int kernel_first = 32'768;
  int kernel_last = 60'999;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> kernel_first >> kernel_last;
  std::random_device chance;
  std::uniform_int_distribution<int> ports(kFirst, kLast);
  // A host may give the kernel all of them.
  const bool all = kernel_first <= kFirst && kernel_last >= kLast;
  for (int i = 0; i < kTries;) {
    const int port = ports(chance);
    if (!all && port >= kernel_first && port <= kernel_last) continue;
    if (is_free(port)) return port;
    ++i;
  }
  throw Error(ErrorCode::io, text("no free TCP port in ", kTries, " tries"));
}

std::string free_loopback_place() { return text("127.0.0.1:", free_port()); }

}  // namespace tessera
