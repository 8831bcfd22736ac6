#include "comm/sockets.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>

#include "base/error.hpp"

namespace tessera::comm {
namespace {

struct AddressesDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, AddressesDeleter>;

Addresses resolve(const HostPort& place, int socket_type) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = socket_type;
  addrinfo* list = nullptr;
  const int failed = getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &hints, &list);
  if (failed != 0) {
    throw Error(ErrorCode::invalid_config, text("the rendezvous host '", place.host, "' cannot be resolved: ", gai_strerror(failed)), {},
                "a host name or an address that every rank can reach", "check the spelling, or give the address of rank 0's host");
  }
  return Addresses(list);
}

std::string numeric(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  if (getnameinfo(address, length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return host.data();
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

// A dead host (no FIN) is noticed by the kernels after about 15 s, even while the peer's process is stopped.
void configure_connection(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  const auto set = [fd](int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 5);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 15000);
}

HostPort parse_host_port(const std::string& where) {
  const std::size_t colon = where.rfind(':');
  unsigned port = 0;
  bool good = colon != std::string::npos && colon > 0;
  if (good) {
    const char* end = where.data() + where.size();
    const auto [stop, problem] = std::from_chars(where.data() + colon + 1, end, port);
    good = problem == std::errc() && stop == end && port > 0 && port < 65536;
  }
  if (!good) {
    throw Error(ErrorCode::invalid_config, text("'", where, "' is not a place where processes meet"), {},
                "HOST:PORT with a port of 1 to 65535, such as 127.0.0.1:29500");
  }
  std::string host = where.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {host, static_cast<std::uint16_t>(port)};
}

Descriptor listen_at(const HostPort& place) {
  const Addresses addresses = resolve(place, SOCK_STREAM);
  Descriptor listener(socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const std::string name = text(place.host, ":", place.port);
  if (!listener) throw_errno("cannot open a socket for", name, errno);
  const int yes = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(listener.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 || listen(listener.get(), 1024) != 0) {
    const int problem = errno;
    const bool taken = problem == EADDRINUSE;
    throw Error(ErrorCode::io, text("rank 0 cannot listen at ", name, ": ", std::strerror(problem)), {.file = {}, .rank = 0, .block = {}},
                taken ? "a port that no other program uses" : "an address of the host that rank 0 runs on",
                taken ? text("choose another port, or stop the program that has it (ss -ltnp 'sport = :", place.port, "')")
                      : "give the address of rank 0's host");
  }
  return listener;
}

Descriptor accept_from(const Descriptor& listener) {
  return Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

namespace {

struct End {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// One of a connection's ends, by getsockname or getpeername.
std::optional<End> end_of(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
  End end;
  if (ask(fd, reinterpret_cast<sockaddr*>(&end.address), &end.size) != 0) return {};
  return end;
}

// While nobody listens at a port that the kernel also hands out by itself, it may give a connection this very port as its own end: it
// then has both ends, and whoever wants to listen finds the port in use.
bool meets_itself(int fd) {
  const std::optional<End> own = end_of(fd, getsockname), other = end_of(fd, getpeername);
  return own && other && own->size == other->size && std::memcmp(&own->address, &other->address, own->size) == 0;
}

// In Linux's abstract namespace, which needs no file and is the network namespace's own.
struct BesideName {
  sockaddr_un address{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

BesideName name_beside(const End& tcp) {
  const auto port = tcp.address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(tcp.get())->sin6_port
                                                      : reinterpret_cast<const sockaddr_in*>(tcp.get())->sin_port;
  const std::string name = text("tessera ", numeric(tcp.get(), tcp.size), " ", ntohs(port));
  BesideName beside;
  beside.address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof beside.address.sun_path - 1);
  std::memcpy(beside.address.sun_path + 1, name.data(), length);
  beside.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return beside;
}

Descriptor unix_socket() { return Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

}  // namespace

Descriptor connect_once(const HostPort& place, std::chrono::milliseconds patience) {
  int why = ETIMEDOUT;
  const Addresses addresses = resolve(place, SOCK_STREAM);
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    Descriptor socket_fd(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket_fd) continue;
    if (connect(socket_fd.get(), address->ai_addr, address->ai_addrlen) == 0) {
      if (!meets_itself(socket_fd.get())) return socket_fd;
      why = ECONNREFUSED;
      continue;
    }
    int problem = errno;
    if (problem == EINPROGRESS) {
      pollfd waiting{socket_fd.get(), POLLOUT, 0};
      if (poll(&waiting, 1, static_cast<int>(patience.count())) <= 0) continue;
      socklen_t size = sizeof problem;
      getsockopt(socket_fd.get(), SOL_SOCKET, SO_ERROR, &problem, &size);
    }
    if (problem == 0 && !meets_itself(socket_fd.get())) return socket_fd;
    // A socket that met itself found nobody listening.
    why = problem == 0 ? ECONNREFUSED : problem;
  }
  errno = why;
  return {};
}

Descriptor listen_beside(const Descriptor& listener) {
  const std::optional<End> tcp = end_of(listener.get(), getsockname);
  if (!tcp) return {};
  const BesideName name = name_beside(*tcp);
  Descriptor beside = unix_socket();
  if (!beside || bind(beside.get(), name.get(), name.size) != 0 || listen(beside.get(), 1024) != 0) return {};
  return beside;
}

Descriptor connect_beside(const Descriptor& connection) {
  const std::optional<End> own = end_of(connection.get(), getsockname), other = end_of(connection.get(), getpeername);
  if (!own || !other || numeric(own->get(), own->size) != numeric(other->get(), other->size)) return {};
  const BesideName name = name_beside(*other);
  Descriptor beside = unix_socket();
  if (!beside || connect(beside.get(), name.get(), name.size) != 0) return {};
  // Whoever comes first gets a name, without any right to it.
  ucred listener{};
  socklen_t size = sizeof listener;
  if (getsockopt(beside.get(), SOL_SOCKET, SO_PEERCRED, &listener, &size) != 0 || listener.uid != geteuid()) return {};
  return beside;
}

std::chrono::milliseconds left_until(SteadyClock::time_point deadline) {
  return std::max(std::chrono::milliseconds(0), std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()));
}

bool wait_readable(int fd, std::chrono::milliseconds patience) {
  pollfd waiting{fd, POLLIN, 0};
  return poll(&waiting, 1, static_cast<int>(std::max<std::int64_t>(0, patience.count()))) > 0;
}

std::string local_address_towards(const HostPort& place) {
  const Addresses addresses = resolve(place, SOCK_DGRAM);
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    const Descriptor probe(socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!probe || connect(probe.get(), address->ai_addr, address->ai_addrlen) != 0) continue;
    if (const std::optional<End> own = end_of(probe.get(), getsockname)) return numeric(own->get(), own->size);
  }
  return {};
}

bool is_loopback(const HostPort& place) {
  const auto local = [](const sockaddr* address) {
    if (address->sa_family == AF_INET) return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
    if (address->sa_family != AF_INET6) return false;
    const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
  };
  const Addresses addresses = resolve(place, SOCK_STREAM);
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    if (!local(address->ai_addr)) return false;
  }
  return true;
}

std::string address_of_peer(int fd) {
  const std::optional<End> other = end_of(fd, getpeername);
  return other ? numeric(other->get(), other->size) : std::string();
}

std::string interface_of(const std::string& address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (numeric(entry->ifa_addr, length) == address) return entry->ifa_name;
  }
  return {};
}

}  // namespace tessera::comm
