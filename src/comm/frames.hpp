// JSON messages over non-blocking TCP: rendezvous and the control channel. A message is a 4-byte length (little endian) and
// that much JSON, an object. Not thread-safe.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "comm/sockets.hpp"

namespace tessera::comm {

// From a process that has not proved yet that it belongs to the run, and from one that has.
inline constexpr std::size_t kLongestUnproven = 64 << 10;
inline constexpr std::size_t kLongestProven = 64 << 20;

// JSON, an object, from another process. Throws corrupt for anything else, and for one that is nested deeper than any of ours.
nlohmann::json parse_object(std::string_view bytes);
// The message as it goes over the connection.
std::string frame_of(const nlohmann::json& message);

// What has arrived and is not read yet: never more than one longest message.
class FrameBuffer {
 public:
  // How many bytes may be appended now. At 0, next() returns a message or throws.
  std::size_t room() const { return 4 + longest_ - (bytes_.size() - begin_); }
  void append(std::string_view bytes) { bytes_.append(bytes); }
  // The next message, none while it is not whole. Throws corrupt for a frame that is too long or no message; the buffer is then of no
  // more use.
  std::optional<nlohmann::json> next();
  void set_longest(std::size_t longest) { longest_ = longest; }

 private:
  std::size_t longest_ = kLongestUnproven;
  std::string bytes_;
  std::size_t begin_ = 0;  // what lies before it was returned
};

// One connection.
class FrameSocket {
 public:
  FrameSocket() = default;
  explicit FrameSocket(Descriptor socket);

  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  // The other end has proved that it belongs to the run: its messages may be long from now on.
  void trust() { in_.set_longest(kLongestProven); }
  // Queues the message and sends as much as the kernel takes; a broken connection shows at the next receive.
  void send(const nlohmann::json& message);
  // Sends what is still queued; true when nothing is left.
  bool flush();
  bool has_unsent() const { return !out_.empty(); }
  // Reads what has arrived, as far as the buffer has room. False once the peer has closed; what came before is still returned by next().
  bool receive();
  // The next complete message, if any. Throws corrupt for what is none.
  std::optional<nlohmann::json> next() { return in_.next(); }
  void close() { socket_ = Descriptor(); }
  // The connection, for another protocol from here on. Precondition: no frame of the peer's is left in it.
  Descriptor release() { return std::move(socket_); }

 private:
  Descriptor socket_;
  FrameBuffer in_;
  std::string out_;
  bool broken_ = false;
};

}  // namespace tessera::comm
