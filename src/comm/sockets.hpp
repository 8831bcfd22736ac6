// Sockets as the rendezvous, the control channel and parameter servers use them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace tessera::comm {

using SteadyClock = std::chrono::steady_clock;

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
// "host:port" or "[v6]:port"; throws invalid_config.
HostPort parse_host_port(const std::string& text);

// Settings of every connection: no delay of small messages, and a dead host is noticed.
void configure_connection(int fd);
// Listens there; throws io with what to do when the port is in use.
Descriptor listen_at(const HostPort& place);
// The next waiting connection, or none.
Descriptor accept_from(const Descriptor& listener);
// Tries once, for at most `patience`; none when nobody answers (yet), and errno says why: ECONNREFUSED where the host is there and no
// process listens. Throws invalid_config when the name cannot be resolved.
Descriptor connect_once(const HostPort& place, std::chrono::milliseconds patience);
// Connections between processes of one host, past TCP: about a third of its time for large messages. The listener stands beside one of TCP
// and bears its address; none where another process has the name.
Descriptor listen_beside(const Descriptor& listener);
// The like of a TCP connection; none where its ends are on different hosts, or nobody of this user listens beside its other end's address.
Descriptor connect_beside(const Descriptor& connection);
// Rounded up; 0 where it has passed.
std::chrono::milliseconds left_until(SteadyClock::time_point deadline);
// Waits until the descriptor can be read, at most that long.
bool wait_readable(int fd, std::chrono::milliseconds patience);
// The local address of a connected socket, or the one a socket to `place` would have; empty when there is no route.
std::string local_address_towards(const HostPort& place);
// Whether every address of this host name is on the loopback, which no other host can reach. Throws like connect_once.
bool is_loopback(const HostPort& place);
// The address of the other end of a connection, in numbers; empty when it is gone.
std::string address_of_peer(int fd);
// The network interface that has this address; empty when none has.
std::string interface_of(const std::string& address);

}  // namespace tessera::comm
