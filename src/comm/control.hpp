// Internal. The control channel: rank 0 keeps one TCP connection to every rank and passes on what all must know: who is
// lost, who has closed, who does not answer. Used by the progress thread alone.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "comm/comm.hpp"
#include "comm/control_messages.hpp"
#include "comm/frames.hpp"

namespace tessera::comm {

class Control {
 public:
  struct Events {
    std::function<void(const Failure&)> failed;
    std::function<void(const Closing& closing)> closing;
    std::function<void()> all_closed;
    std::function<std::string()> place;  // of this rank
  };
  // A rank that sends no heartbeat for the options' heartbeat_timeout is given up. Messages carry the options' epoch; those of an earlier
  // one are dropped.
  Control(const Options& options, std::vector<FrameSocket> sockets, Events events);

  // Descriptors to sleep on; a dead one is -1.
  std::vector<int> descriptors() const;
  // Reads and acts on everything that has arrived. What cannot be read is the failure of the rank that sent it.
  void read();
  // Sends the heartbeat and what is still queued; call it every kBeat or more often.
  void tick(SteadyClock::time_point now);
  void tell_failed(const Failure& failure);
  void tell_closing(const Joined& joined);
  bool has_closed(int rank) const { return closed_[static_cast<std::size_t>(rank)]; }
  // Sends what is still queued; true when nothing is left.
  bool flushed();
  // World ranks whose last heartbeat is more than a second old, with the seconds since.
  std::vector<std::pair<int, double>> without_heartbeat(SteadyClock::time_point now) const;

  // "; it was last at forward of micro-batch 3", as the rank has said in a heartbeat; empty where it has not. From any thread.
  std::string last_at(int rank) const;

  static constexpr std::chrono::milliseconds kBeat{250};

 private:
  nlohmann::json framed(const ControlMessage& message) const;
  void act(int from, const ControlMessage& message);
  void gone(int rank);
  void refuse(int from, const Error& error);
  void tell_rank_0_or_all(const ControlMessage& message);
  void pass_on(const ControlMessage& message, int except);
  void note_closing(const Closing& closing);

  int rank_;
  int world_size_;
  std::int64_t epoch_;
  double heartbeat_timeout_;
  bool gave_up_ = false;
  std::vector<FrameSocket> sockets_;  // rank 0: by rank; others: place 0
  Events events_;
  // The progress thread alone writes the next four; any thread may ask without_heartbeat() and last_at(), so writes and that read are
  // guarded.
  mutable std::mutex heartbeat_mutex_;
  std::vector<bool> closed_;
  std::vector<SteadyClock::time_point> heard_;
  std::vector<int> without_by_hearsay_;
  std::vector<std::string> places_;  // by rank, as last heard
  SteadyClock::time_point last_beat_;
  bool ended_ = false;
};

}  // namespace tessera::comm
