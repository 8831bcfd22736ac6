#include "comm/control.hpp"

#include <algorithm>

namespace tessera::comm {
namespace {

using nlohmann::json;
constexpr std::chrono::milliseconds kMissedHeartbeats(1000);

json to_json(const Failure& failure) {
  return {{"kind", "failed"}, {"code", static_cast<int>(failure.code)}, {"rank", failure.rank}, {"message", failure.message}};
}

Failure failure_from(const json& message) {
  return {static_cast<ErrorCode>(message.value("code", static_cast<int>(ErrorCode::internal))), message.value("rank", -1),
          message.value("message", "")};
}

}  // namespace

Control::Control(int rank, int world_size, Seconds heartbeat_timeout, std::vector<FrameSocket> sockets, Events events)
    : rank_(rank),
      world_size_(world_size),
      heartbeat_timeout_(heartbeat_timeout.value),
      sockets_(std::move(sockets)),
      events_(std::move(events)),
      closed_(static_cast<std::size_t>(world_size), false),
      heard_(static_cast<std::size_t>(world_size), SteadyClock::now()),
      last_beat_(SteadyClock::now()) {}

std::vector<int> Control::descriptors() const {
  std::vector<int> descriptors;
  for (const FrameSocket& socket : sockets_) descriptors.push_back(socket.fd());
  return descriptors;
}

void Control::read() {
  for (std::size_t from = 0; from < sockets_.size(); ++from) {
    FrameSocket& socket = sockets_[from];
    if (!socket.open()) continue;
    const bool alive = socket.receive();
    while (const auto message = socket.next()) act(static_cast<int>(from), *message);
    if (alive) continue;
    socket.close();
    gone(static_cast<int>(from));
  }
}

void Control::gone(int rank) {
  if (ended_) return;
  if (!closed_[static_cast<std::size_t>(rank)]) {
    const Failure failure{ErrorCode::peer_lost, rank, text("rank ", rank, " is lost: its process ended or its host cannot be reached")};
    pass_on(to_json(failure), rank);
    events_.failed(failure);
  } else if (rank_ != 0 && !closed_[static_cast<std::size_t>(rank_)]) {
    events_.failed({ErrorCode::peer_lost, 0, "rank 0 is lost: it closed its communicator before the others"});
  } else if (rank_ != 0) {
    ended_ = true;
    events_.all_closed();
  }
}

void Control::act(int from, const json& message) {
  {
    const std::lock_guard lock(heartbeat_mutex_);
    heard_[static_cast<std::size_t>(from)] = SteadyClock::now();
  }
  const std::string kind = message.value("kind", "");
  if (kind == "beat") {
    if (rank_ == 0) return;
    const std::lock_guard lock(heartbeat_mutex_);
    without_by_hearsay_ = message.value("without_heartbeat", std::vector<int>{});
  } else if (kind == "failed") {
    pass_on(message, from);
    events_.failed(failure_from(message));
  } else if (kind == "closing") {
    pass_on(message, from);
    note_closing(message.value("rank", from), message.value("started", json::object()));
  } else if (kind == "end" && !ended_) {
    ended_ = true;
    events_.all_closed();
  }
}

void Control::pass_on(const json& message, int except) {
  if (rank_ != 0) return;
  for (std::size_t to = 1; to < sockets_.size(); ++to) {
    if (static_cast<int>(to) != except && sockets_[to].open()) sockets_[to].send(message);
  }
}

void Control::note_closing(int rank, const json& started) {
  if (rank < 0 || rank >= world_size_) return;
  {
    const std::lock_guard lock(heartbeat_mutex_);
    closed_[static_cast<std::size_t>(rank)] = true;
  }
  if (rank != rank_) events_.closing(rank, started);
  if (rank_ != 0 || ended_ || std::find(closed_.begin(), closed_.end(), false) != closed_.end()) return;
  ended_ = true;
  pass_on({{"kind", "end"}}, -1);
  events_.all_closed();
}

void Control::tick(SteadyClock::time_point now) {
  for (FrameSocket& socket : sockets_) {
    if (socket.open() && socket.has_unsent()) socket.flush();
  }
  if (now - last_beat_ < kBeat) return;
  // Who was stopped itself has not heard the others, and cannot blame them.
  if (now - last_beat_ > kMissedHeartbeats) {
    const std::lock_guard lock(heartbeat_mutex_);
    std::fill(heard_.begin(), heard_.end(), now);
  }
  last_beat_ = now;
  json beat{{"kind", "beat"}};
  if (rank_ == 0) {
    std::vector<int> ranks;
    for (const auto& [rank, seconds] : without_heartbeat(now)) ranks.push_back(rank);
    beat["without_heartbeat"] = ranks;
  }
  for (FrameSocket& socket : sockets_) {
    // A stopped process does not read; its beats need not pile up.
    if (socket.open() && !socket.has_unsent()) socket.send(beat);
  }
  for (const auto& [rank, seconds] : without_heartbeat(now))
    if (seconds > heartbeat_timeout_ && !ended_ && !gave_up_) {
      gave_up_ = true;
      const Failure failure{
          ErrorCode::peer_lost, rank,
          text("rank ", rank, " is lost: it has not answered for ", to_text(Seconds(seconds)), "; its process or host is stopped")};
      pass_on(to_json(failure), rank);
      events_.failed(failure);
    }
}

bool Control::flushed() {
  bool all = true;
  for (FrameSocket& socket : sockets_) all = (!socket.open() || socket.flush()) && all;
  return all;
}

void Control::tell_failed(const Failure& failure) {
  if (rank_ == 0) {
    pass_on(to_json(failure), -1);
  } else if (sockets_[0].open()) {
    sockets_[0].send(to_json(failure));
  }
}

void Control::tell_closing(const json& started) {
  const json message{{"kind", "closing"}, {"rank", rank_}, {"started", started}};
  if (rank_ == 0) {
    pass_on(message, -1);
  } else if (sockets_[0].open()) {
    sockets_[0].send(message);
  }
  note_closing(rank_, started);
}

std::vector<std::pair<int, double>> Control::without_heartbeat(SteadyClock::time_point now) const {
  const std::lock_guard lock(heartbeat_mutex_);
  std::vector<std::pair<int, double>> ranks;
  const auto judge = [&](int rank) {
    const auto quiet = now - heard_[static_cast<std::size_t>(rank)];
    if (quiet > kMissedHeartbeats && !closed_[static_cast<std::size_t>(rank)])
      ranks.emplace_back(rank, std::chrono::duration<double>(quiet).count());
  };
  if (rank_ == 0) {
    for (int rank = 1; rank < world_size_; ++rank) judge(rank);
  } else {
    judge(0);
    for (const int rank : without_by_hearsay_) {
      if (rank != rank_) ranks.emplace_back(rank, 0.0);
    }
  }
  return ranks;
}

}  // namespace tessera::comm
