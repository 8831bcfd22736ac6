#include "comm/frames.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/error.hpp"

namespace tessera::comm {
namespace {

// Ours have four levels. A reader that recurses would run out of stack over some thousand.
constexpr int kDeepest = 16;

bool too_deep(std::string_view bytes) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char c = bytes[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{')) {
      if (++depth > kDeepest) return true;
    } else if (!quoted && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return false;
}

}  // namespace

nlohmann::json parse_object(std::string_view bytes) {
  if (too_deep(bytes)) throw Error(ErrorCode::corrupt, "a message is nested too deeply", {}, text("at most ", kDeepest, " levels"));
  nlohmann::json message = nlohmann::json::parse(bytes, nullptr, false);
  if (message.is_discarded() || !message.is_object()) throw Error(ErrorCode::corrupt, "a message is no JSON object");
  return message;
}

std::string frame_of(const nlohmann::json& message) {
  // A path in the text of an error need not be UTF-8.
  const std::string body = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  ensure(body.size() <= kLongestProven, text("a message of ", body.size(), " bytes between ranks"));
  std::string frame;
  frame.reserve(4 + body.size());
  for (int shift = 0; shift < 32; shift += 8) frame.push_back(static_cast<char>(body.size() >> shift & 0xff));
  return frame + body;
}

std::optional<nlohmann::json> FrameBuffer::next() {
  const std::string_view waiting = std::string_view(bytes_).substr(begin_);
  std::size_t length = 0;
  for (std::size_t i = 0; i < 4 && i < waiting.size(); ++i)
    length |= static_cast<std::size_t>(static_cast<unsigned char>(waiting[i])) << (8 * i);
  if (waiting.size() >= 4 && length > longest_)
    throw Error(ErrorCode::corrupt, text("a message of ", length, " bytes"), {}, text("at most ", longest_, " bytes"));
  if (waiting.size() < 4 || waiting.size() < 4 + length) {
    bytes_.erase(0, begin_);
    begin_ = 0;
    return std::nullopt;
  }
  begin_ += 4 + length;
  return parse_object(waiting.substr(4, length));
}

FrameSocket::FrameSocket(Descriptor socket) : socket_(std::move(socket)) { configure_connection(socket_.get()); }

void FrameSocket::send(const nlohmann::json& message) {
  out_ += frame_of(message);
  flush();
}

bool FrameSocket::flush() {
  while (!out_.empty()) {
    const ssize_t sent = ::send(fd(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      out_.erase(0, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno != EINTR) {
      out_.clear();  // the reader of this socket finds out why
    }
  }
  return true;
}

bool FrameSocket::receive() {
  std::array<char, 65536> buffer;
  while (!broken_ && in_.room() > 0) {
    const ssize_t got = ::recv(fd(), buffer.data(), std::min(buffer.size(), in_.room()), MSG_DONTWAIT);
    if (got > 0) {
      in_.append({buffer.data(), static_cast<std::size_t>(got)});
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return true;
    } else {
      broken_ = true;
    }
  }
  return !broken_;
}

}  // namespace tessera::comm
