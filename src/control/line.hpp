// Internal. The connection between a launcher and its agent on another host: ssh's input and output, or a TCP connection.
#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/units.hpp"
#include "comm/frames.hpp"
#include "comm/sockets.hpp"
#include "control/agent_messages.hpp"

namespace tessera::control {

// Both ends say that they are there every kBeat, and give the other one up after kSilence: a host that is switched off says nothing more.
inline constexpr Seconds kBeat(2);
inline constexpr Seconds kSilence(60);

// Never blocks. Not thread-safe.
class Line {
 public:
  Line() = default;
  // `in` and `out` may be one socket (`out` empty then). They are made non-blocking. `clock` outlives the line.
  Line(comm::Descriptor in, comm::Descriptor out, const Clock& clock = real_clock());

  bool open() const { return static_cast<bool>(in_); }
  void close();
  // The other end has proved that it belongs to the run, or needs no proof: its messages may be long.
  void trust() { buffer_.set_longest(comm::kLongestProven); }
  void send(const AgentMessage& message) { send_json(to_json(message)); }
  void send_json(const nlohmann::json& message);
  // What is not sent yet, in bytes.
  std::size_t unsent() const { return unsent_.size(); }
  // Sends and reads as much as goes now, and the beat that is due. False when the line is at its end: closed, broken or silent.
  bool pump();
  // The next message that has come. Throws corrupt for what is none.
  std::optional<nlohmann::json> next_json() { return buffer_.next(); }
  std::optional<AgentMessage> next();
  // Adds what pump() waits for.
  void watch(std::vector<pollfd>& watched) const;
  // The descriptor that reads.
  int fd() const { return in_.get(); }

 private:
  int write_fd() const { return out_ ? out_.get() : in_.get(); }
  bool flush();
  bool receive();

  comm::Descriptor in_;
  comm::Descriptor out_;
  comm::FrameBuffer buffer_;
  std::string unsent_;
  const Clock* clock_ = &real_clock();
  Seconds heard_{0};
  Seconds said_{0};
};

}  // namespace tessera::control
