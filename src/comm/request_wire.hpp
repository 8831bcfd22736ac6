// Internal. What clients and servers of comm/requests.hpp send each other.
//
// A client connects, and both prove that they know the secret (as at a rendezvous: Greeting, Challenge, then both sides' words, sealed).
// From then on the same connection carries requests and replies as they stand: a MessageHeader, then the message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "comm/requests.hpp"
#include "comm/sockets.hpp"

namespace tessera::comm {

struct MessageHeader {
  std::uint64_t number = 0;  // of the client's requests, from 0; a reply has that of its request
  std::uint32_t bytes = 0;
  std::uint32_t failed = 0;  // of a reply: 1, when it is an Error as JSON
};
static_assert(sizeof(MessageHeader) == 16);

// Aligned to a cache line, not zeroed.
class MessageBuffer {
 public:
  MessageBuffer() : bytes_(static_cast<std::byte*>(std::aligned_alloc(64, kMostMessageBytes))) {
    if (!bytes_) throw std::bad_alloc();
  }
  std::span<std::byte> all() const { return {bytes_.get(), kMostMessageBytes}; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> bytes_;
};

// One connection, whose ends have proved themselves. Never waits. Not thread-safe.
class MessageStream {
 public:
  MessageStream() = default;
  explicit MessageStream(Descriptor socket);

  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  void close() { socket_ = Descriptor(); }

  // Sends what the kernel takes now, behind what is not sent yet. The bytes must stay as they are until sent() counts the message.
  void send(const MessageHeader& header, std::span<const std::byte> bytes);
  // Goes on with that. False: the connection is lost.
  bool flush();
  bool has_unsent() const { return !out_.empty(); }
  std::uint64_t sent() const { return sent_; }  // messages, whole

  enum class Came { nothing, message, end };
  // Reads what has come, up to the end of one message, of which header() tells. `place` says where one with this header goes; nullptr ends
  // the connection.
  Came receive(const std::function<std::byte*(const MessageHeader&)>& place);
  const MessageHeader& header() const { return in_header_; }

 private:
  struct Outgoing {
    MessageHeader header;
    std::span<const std::byte> bytes;
    std::size_t gone = 0;  // header included
  };
  Descriptor socket_;
  std::deque<Outgoing> out_;
  std::uint64_t sent_ = 0;
  bool broken_ = false;
  MessageHeader in_header_;
  std::size_t in_ = 0;  // of the message that is coming, header included
  std::byte* in_place_ = nullptr;
};

struct ClientWords {
  RequestClient::Options::Wants wants = RequestClient::Options::Wants::leader;
};
struct ServerWords {
  bool taken = false;  // no: this server is not what the client wants
};
std::string to_body(const ClientWords& words);
std::string to_body(const ServerWords& words);
// Throw corrupt.
ClientWords client_words_from(const std::string& body);
ServerWords server_words_from(const std::string& body);

}  // namespace tessera::comm
