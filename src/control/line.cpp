#include "control/line.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>

namespace tessera::control {
namespace {

void make_non_blocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

// A reader that has gone away must not end this process by a signal, which only sockets can be told.
ssize_t write_some(int fd, std::string_view bytes) {
  const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent < 0 && errno == ENOTSOCK ? ::write(fd, bytes.data(), bytes.size()) : sent;
}

bool try_again() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

Line::Line(comm::Descriptor in, comm::Descriptor out, const Clock& clock) : in_(std::move(in)), out_(std::move(out)), clock_(&clock) {
  make_non_blocking(in_.get());
  if (out_) make_non_blocking(out_.get());
  heard_ = said_ = clock_->now();
}

void Line::close() {
  in_ = comm::Descriptor();
  out_ = comm::Descriptor();
}

void Line::send_json(const nlohmann::json& message) {
  unsent_ += comm::frame_of(message);
  flush();
}

bool Line::flush() {
  said_ = clock_->now();
  std::size_t done = 0;
  bool intact = true;
  while (open() && done < unsent_.size()) {
    const ssize_t sent = write_some(write_fd(), std::string_view(unsent_).substr(done));
    if (sent > 0) {
      done += static_cast<std::size_t>(sent);
    } else if (errno != EINTR) {
      intact = try_again();
      break;
    }
  }
  unsent_.erase(0, done);
  return intact;
}

bool Line::receive() {
  std::array<char, 65536> buffer;
  while (buffer_.room() > 0) {
    const ssize_t got = ::read(in_.get(), buffer.data(), std::min(buffer.size(), buffer_.room()));
    if (got > 0) {
      buffer_.append({buffer.data(), static_cast<std::size_t>(got)});
      heard_ = clock_->now();
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else {
      return got < 0 && try_again();
    }
  }
  return true;
}

bool Line::pump() {
  if (!open()) return false;
  const Seconds now = clock_->now();
  // A beat behind what is not sent yet says nothing that it does not.
  if (unsent_.empty() && now - said_ >= kBeat) send(Beat{});
  const bool can_send = unsent_.empty() || flush();
  const bool can_receive = receive();
  return can_send && can_receive && now - heard_ < kSilence;
}

std::optional<AgentMessage> Line::next() {
  const auto message = buffer_.next();
  return message ? std::optional(agent_message_from(*message)) : std::nullopt;
}

void Line::watch(std::vector<pollfd>& watched) const {
  if (!open()) return;
  watched.push_back({in_.get(), POLLIN, 0});
  if (!unsent_.empty()) watched.push_back({write_fd(), POLLOUT, 0});
}

}  // namespace tessera::control
