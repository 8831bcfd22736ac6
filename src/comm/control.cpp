#include "comm/control.hpp"

#include <algorithm>

#include "comm/fields.hpp"

namespace tessera::comm {
namespace {

constexpr std::chrono::milliseconds kMissedHeartbeats(1000);
// Of so many ranks rank 0 tells each what all are at, for errors about one that lives and does not come; of more, of those that are silent.
constexpr int kFewRanks = 64;

}  // namespace

Control::Control(const Options& options, std::vector<FrameSocket> sockets, Events events)
    : rank_(options.rank),
      world_size_(options.world_size),
      epoch_(options.epoch),
      heartbeat_timeout_(options.heartbeat_timeout.value),
      sockets_(std::move(sockets)),
      events_(std::move(events)),
      closed_(static_cast<std::size_t>(world_size_), false),
      heard_(static_cast<std::size_t>(world_size_), SteadyClock::now()),
      places_(static_cast<std::size_t>(world_size_)),
      last_beat_(SteadyClock::now()) {}

std::vector<int> Control::descriptors() const {
  std::vector<int> descriptors;
  for (const FrameSocket& socket : sockets_) descriptors.push_back(socket.fd());
  return descriptors;
}

void Control::read() {
  for (std::size_t place = 0; place < sockets_.size(); ++place) {
    FrameSocket& socket = sockets_[place];
    if (!socket.open()) continue;
    const int from = static_cast<int>(place);
    bool alive = true;
    try {
      alive = socket.receive();
      while (const auto message = socket.next()) {
        const std::int64_t epoch = integer_in(*message, "epoch", 0, epoch_);
        if (epoch == epoch_) act(from, control_message_from(*message, world_size_));
      }
    } catch (const Error& error) {
      refuse(from, error);
      continue;
    }
    if (alive) continue;
    socket.close();
    gone(from);
  }
}

nlohmann::json Control::framed(const ControlMessage& message) const {
  nlohmann::json frame = to_json(message);
  frame["epoch"] = epoch_;
  return frame;
}

void Control::gone(int rank) {
  if (ended_) return;
  if (!closed_[static_cast<std::size_t>(rank)]) {
    const Failure failure{ErrorCode::peer_lost, rank,
                          text("rank ", rank, " is lost: its process ended or its host cannot be reached", last_at(rank))};
    pass_on(failure, rank);
    events_.failed(failure);
  } else if (rank_ != 0 && !closed_[static_cast<std::size_t>(rank_)]) {
    events_.failed({ErrorCode::peer_lost, 0, "rank 0 is lost: it closed its communicator before the others"});
  } else if (rank_ != 0) {
    ended_ = true;
    events_.all_closed();
  }
}

void Control::refuse(int from, const Error& error) {
  sockets_[static_cast<std::size_t>(from)].close();
  const Failure failure{ErrorCode::corrupt, from, text("rank ", from, " is lost: over the control channel came ", error.message())};
  pass_on(failure, from);
  events_.failed(failure);
}

void Control::act(int from, const ControlMessage& message) {
  {
    const std::lock_guard lock(heartbeat_mutex_);
    heard_[static_cast<std::size_t>(from)] = SteadyClock::now();
    const auto* heartbeat = std::get_if<Heartbeat>(&message);
    if (heartbeat != nullptr) {
      places_[static_cast<std::size_t>(from)] = heartbeat->place;
      if (rank_ != 0) without_by_hearsay_ = heartbeat->without;
      if (rank_ != 0)
        for (const auto& [rank, place] : heartbeat->places) places_[static_cast<std::size_t>(rank)] = place;
    }
  }
  if (const auto* failure = std::get_if<Failure>(&message)) {
    pass_on(*failure, from);
    events_.failed(*failure);
  } else if (const auto* closing = std::get_if<Closing>(&message)) {
    if (rank_ == 0 && closing->rank != from) throw Error(ErrorCode::corrupt, text("a message in which it closes for rank ", closing->rank));
    pass_on(*closing, from);
    note_closing(*closing);
  } else if (std::holds_alternative<End>(message) && rank_ != 0 && !ended_) {
    ended_ = true;
    events_.all_closed();
  }
}

void Control::pass_on(const ControlMessage& message, int except) {
  if (rank_ != 0) return;
  const nlohmann::json json = framed(message);
  for (std::size_t to = 1; to < sockets_.size(); ++to) {
    if (static_cast<int>(to) != except && sockets_[to].open()) sockets_[to].send(json);
  }
}

void Control::tell_rank_0_or_all(const ControlMessage& message) {
  if (rank_ == 0) {
    pass_on(message, -1);
  } else if (sockets_[0].open()) {
    sockets_[0].send(framed(message));
  }
}

void Control::note_closing(const Closing& closing) {
  {
    const std::lock_guard lock(heartbeat_mutex_);
    closed_[static_cast<std::size_t>(closing.rank)] = true;
  }
  if (closing.rank != rank_) events_.closing(closing);
  if (rank_ != 0 || ended_ || std::find(closed_.begin(), closed_.end(), false) != closed_.end()) return;
  ended_ = true;
  pass_on(End{}, -1);
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
  Heartbeat heartbeat;
  heartbeat.place = events_.place().substr(0, kLongestPlace);
  if (rank_ == 0) {
    for (const auto& [rank, seconds] : without_heartbeat(now)) heartbeat.without.push_back(rank);
    for (int rank = 1; rank < world_size_; ++rank) {
      const std::string& place = places_[static_cast<std::size_t>(rank)];
      const bool silent = std::find(heartbeat.without.begin(), heartbeat.without.end(), rank) != heartbeat.without.end();
      if (!place.empty() && (silent || world_size_ <= kFewRanks)) heartbeat.places[rank] = place;
    }
  }
  const nlohmann::json beat = framed(heartbeat);
  for (FrameSocket& socket : sockets_) {
    // A stopped process does not read; its beats need not pile up.
    if (socket.open() && !socket.has_unsent()) socket.send(beat);
  }
  for (const auto& [rank, seconds] : without_heartbeat(now))
    if (seconds > heartbeat_timeout_ && !ended_ && !gave_up_) {
      gave_up_ = true;
      const Failure failure{ErrorCode::peer_lost, rank,
                            text("rank ", rank, " is lost: it has not answered for ", to_text(Seconds(seconds)),
                                 "; its process or host is stopped", last_at(rank))};
      pass_on(failure, rank);
      events_.failed(failure);
    }
}

bool Control::flushed() {
  bool all = true;
  for (FrameSocket& socket : sockets_) all = (!socket.open() || socket.flush()) && all;
  return all;
}

void Control::tell_failed(const Failure& failure) { tell_rank_0_or_all(failure); }

void Control::tell_closing(const Joined& joined) {
  const Closing closing{rank_, joined};
  tell_rank_0_or_all(closing);
  note_closing(closing);
}

std::string Control::last_at(int rank) const {
  const std::lock_guard lock(heartbeat_mutex_);
  const std::string& place = places_[static_cast<std::size_t>(rank)];
  return place.empty() ? std::string() : text("; it was last at ", place);
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
