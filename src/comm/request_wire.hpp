// Internal. What clients and servers of comm/requests.hpp send each other.
//
// A client connects over TCP, where both prove that they know the secret (as at a rendezvous: Greeting, Challenge, then both sides' words,
// sealed) and say where UCX finds them. Requests and replies are tagged messages of UCX; the TCP connection stays, and its end is that of
// the session.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "comm/requests.hpp"

namespace tessera::comm {

// In front of each message; what follows begins at a multiple of 16.
struct RequestHeader {
  std::uint64_t session;
  std::uint64_t number;  // of the session's requests, from 0
};
struct ReplyHeader {
  std::uint64_t number;
  std::uint64_t failed;  // 1: what follows is an Error as JSON
};
static_assert(sizeof(RequestHeader) == 16 && sizeof(ReplyHeader) == 16);
inline constexpr std::size_t kHeaderBytes = 16;
inline constexpr std::size_t kBufferBytes = kMostMessageBytes + kHeaderBytes;

// A server takes any message with this bit; a reply has none, but the client's number of the connection and that of the request.
inline constexpr std::uint64_t kRequestTag = std::uint64_t{1} << 63;
inline std::uint64_t reply_tag(std::uint64_t connection, std::uint64_t number) { return connection << 32 | (number & 0xFFFFFFFF); }

// Aligned to a cache line, not zeroed.
class MessageBuffer {
 public:
  MessageBuffer() : bytes_(static_cast<std::byte*>(std::aligned_alloc(64, (kBufferBytes + 63) / 64 * 64))) {
    if (!bytes_) throw std::bad_alloc();
  }
  std::byte* data() const { return bytes_.get(); }
  std::span<std::byte> body() const { return {bytes_.get() + kHeaderBytes, kMostMessageBytes}; }
  // UCX may still write into it: its memory is never freed.
  void leave_behind() { static_cast<void>(bytes_.release()); }
  template <typename Header>
  Header& header() const {
    return *reinterpret_cast<Header*>(bytes_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> bytes_;
};

struct ClientWords {
  std::string network_address;
  std::uint64_t connection = 0;  // another number for each of the client's connections
  bool to_standby = false;
};
struct ServerWords {
  std::string network_address;
  std::uint64_t session = 0;
  bool standby = false;  // this server takes no clients now, and has no address
};
std::string to_body(const ClientWords& words);
std::string to_body(const ServerWords& words);
// Throw corrupt.
ClientWords client_words_from(const std::string& body);
ServerWords server_words_from(const std::string& body);

// The request that `done` is called for, also for messages that are there already; null where it could not begin.
void* begin_receive(ucp_worker_h worker, const MessageBuffer& into, std::uint64_t tag, std::uint64_t mask, ucp_tag_recv_nbx_callback_t done,
                    void* user);
// The header and so many bytes behind it. As ucp_tag_send_nbx: `done` is called only where it returns a pointer.
ucs_status_ptr_t begin_send(ucp_ep_h endpoint, const MessageBuffer& from, std::size_t bytes, std::uint64_t tag,
                            ucp_send_nbx_callback_t done, void* user);

// An endpoint that tells `broken` of its end. Null where the peer cannot be reached.
ucp_ep_h connect_endpoint(ucp_worker_h worker, const std::string& address, ucp_err_handler_cb_t broken, void* argument);
// Ends the endpoints' messages at once, for at most half a second. False: the worker cannot be destroyed safely.
bool close_endpoints(ucp_worker_h worker, std::span<const ucp_ep_h> endpoints);

}  // namespace tessera::comm
