#include "comm/request_wire.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "comm/fields.hpp"
#include "comm/frames.hpp"

namespace tessera::comm {
namespace {

// Of the kernel's buffers: a message fits in, so that a sender goes on while its receiver computes.
constexpr int kKernelBytes = 4 << 20;

}  // namespace

using Wants = RequestClient::Options::Wants;
NLOHMANN_JSON_SERIALIZE_ENUM(RequestClient::Options::Wants, {{Wants::leader, "leader"}, {Wants::standby, "standby"}, {Wants::any, "any"}})

MessageStream::MessageStream(Descriptor socket) : socket_(std::move(socket)) {
  for (const int buffer : {SO_SNDBUF, SO_RCVBUF}) setsockopt(fd(), SOL_SOCKET, buffer, &kKernelBytes, sizeof kKernelBytes);
}

void MessageStream::send(const MessageHeader& header, std::span<const std::byte> bytes) {
  out_.push_back({header, bytes});
  out_.back().header.bytes = static_cast<std::uint32_t>(bytes.size());
  flush();
}

bool MessageStream::flush() {
  while (!out_.empty() && !broken_) {
    Outgoing& next = out_.front();
    const std::size_t of_header = std::min(next.gone, sizeof next.header), of_bytes = next.gone - of_header;
    const auto begin_of = [](const auto* at) { return const_cast<std::byte*>(reinterpret_cast<const std::byte*>(at)); };
    std::array<iovec, 2> parts{iovec{begin_of(&next.header) + of_header, sizeof next.header - of_header},
                               iovec{begin_of(next.bytes.data()) + of_bytes, next.bytes.size() - of_bytes}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t gone = sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (gone > 0) {
      next.gone += static_cast<std::size_t>(gone);
      if (next.gone < sizeof next.header + next.bytes.size()) continue;
      out_.pop_front();
      ++sent_;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      broken_ = true;
    }
  }
  return !broken_;
}

MessageStream::Came MessageStream::receive(const std::function<std::byte*(const MessageHeader&)>& place) {
  while (!broken_) {
    const bool of_header = in_ < sizeof in_header_;
    std::byte* const to = of_header ? reinterpret_cast<std::byte*>(&in_header_) + in_ : in_place_ + (in_ - sizeof in_header_);
    const std::size_t want = of_header ? sizeof in_header_ - in_ : in_header_.bytes - (in_ - sizeof in_header_);
    const ssize_t got = want == 0 ? 0 : recv(fd(), to, want, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Came::nothing;
    if (got < 0 || (got == 0 && want > 0)) break;
    in_ += static_cast<std::size_t>(got);
    if (in_ < sizeof in_header_) continue;
    if (of_header && (in_header_.bytes > kMostMessageBytes || !(in_place_ = place(in_header_)))) break;
    if (in_ < sizeof in_header_ + in_header_.bytes) continue;
    in_ = 0;
    return Came::message;
  }
  broken_ = true;
  return Came::end;
}

std::string to_body(const ClientWords& words) { return nlohmann::json{{"wants", words.wants}}.dump(); }
std::string to_body(const ServerWords& words) { return nlohmann::json{{"taken", words.taken}}.dump(); }

ClientWords client_words_from(const std::string& body) {
  const nlohmann::json message = parse_object(body);
  for (const Wants wants : {Wants::leader, Wants::standby, Wants::any})
    if (message.value("wants", nlohmann::json()) == nlohmann::json(wants)) return {wants};
  refuse_message("it does not say which server it wants", "leader, standby or any");
}

ServerWords server_words_from(const std::string& body) {
  const nlohmann::json message = parse_object(body);
  const auto taken = message.find("taken");
  if (taken == message.end() || !taken->is_boolean()) refuse_message("it does not say whether the client is taken", "true or false");
  return {taken->get<bool>()};
}

}  // namespace tessera::comm
