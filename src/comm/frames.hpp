// Internal. JSON messages over non-blocking TCP: rendezvous and the control channel. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

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

// One connection. A message is a 4-byte length (little endian) and that much JSON.
class FrameSocket {
 public:
  FrameSocket() = default;
  explicit FrameSocket(Descriptor socket);

  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  // Queues the message and sends as much as the kernel takes; a broken connection shows at the next receive.
  void send(const nlohmann::json& message);
  // Sends what is still queued; true when nothing is left.
  bool flush();
  bool has_unsent() const { return !out_.empty(); }
  // Reads what has arrived. False once the peer has closed or the bytes are not ours; what came before is still returned by next().
  bool receive();
  // The next complete message, if any.
  std::optional<nlohmann::json> next();
  void close() { socket_ = Descriptor(); }

 private:
  Descriptor socket_;
  std::string in_;
  std::string out_;
  bool broken_ = false;
};

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
// "host:port" or "[v6]:port"; throws invalid_config.
HostPort parse_host_port(const std::string& text);

// Listens there; throws io with what to do when the port is in use.
Descriptor listen_at(const HostPort& place);
// The next waiting connection, or none.
Descriptor accept_from(const Descriptor& listener);
// Tries once, for at most `patience`; none when nobody answers (yet). Throws invalid_config when the name cannot be resolved.
Descriptor connect_once(const HostPort& place, std::chrono::milliseconds patience);
// Waits until the descriptor can be read, at most that long.
bool wait_readable(int fd, std::chrono::milliseconds patience);
// The local address of a connected socket, or the one a socket to `place` would have; empty when there is no route.
std::string local_address_towards(const HostPort& place);
// The network interface that has this address; empty when none has.
std::string interface_of(const std::string& address);

}  // namespace tessera::comm
