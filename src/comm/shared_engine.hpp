// Internal. Runs the collectives of groups whose members share a host, and the messages between two such ranks. Whoever
// waits for one of these drives the engine, so that a plain call switches no threads; its own thread drives it while nobody waits.
// Whatever is thrown while it is driven ends the task.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/channel.hpp"
#include "comm/control.hpp"
#include "comm/operation.hpp"
#include "comm/shared_memory.hpp"
#include "comm/shared_messages.hpp"

namespace tessera::comm {

class SharedEngine final : public SharedMessages::Driver {
 public:
  // `segments` by world rank; empty for ranks of other hosts.
  SharedEngine(Engine& engine, int own_rank, std::vector<Segment> segments);
  ~SharedEngine();

  void submit(OperationPointer operation);
  // Drives the engine until the operation is done, or leaves it to the thread that drives already.
  void help(Operation& operation);
  // The task has failed: everything ends.
  void wake();

  // For the messages, while they are driven.
  void finish(const OperationPointer& operation, std::shared_ptr<const Error> error) override;
  void hold() override { unfinished_.fetch_add(1); }
  void let_go() override { unfinished_.fetch_sub(1); }

  const Segment& segment(int world_rank) const { return segments_[static_cast<std::size_t>(world_rank)]; }
  Segment& own_segment() { return segments_[static_cast<std::size_t>(own_rank_)]; }

 private:
  template <typename Predicate>
  void drive_until(const Predicate& enough);
  bool step();
  bool take_inbox();
  OperationPointer take_one();
  bool anything_to_do();
  template <typename Predicate>
  void idle(const Predicate& enough);
  void look_at_clock(SteadyClock::time_point now);
  bool impatient() const;
  void run(Channel& channel);
  SharedMessages& messages_with(const Operation& operation);
  void start(const OperationPointer& operation);
  void end_all() noexcept;
  void background();
  Channel& channel_of(const std::shared_ptr<Group::State>& group);

  Engine& engine_;
  const int own_rank_;
  std::vector<Segment> segments_;

  std::mutex driver_;                      // held by the one thread that drives; guards what follows
  std::deque<OperationPointer> arriving_;  // from the inbox; not started yet
  std::map<const Group::State*, std::unique_ptr<Channel>> channels_;
  std::vector<Channel*> active_;
  std::map<int, SharedMessages> messages_;  // by the peer's world rank
  std::size_t buffered_ = 0;                // bytes, see SharedMessages
  SteadyClock::time_point last_look_;       // at the clock

  std::mutex inbox_mutex_;  // guards inbox_
  std::vector<OperationPointer> inbox_;
  std::atomic<std::size_t> unfinished_{0};
  std::atomic<std::size_t> helpers_{0};  // threads that want to drive; the background thread gives way to them
  std::atomic<std::uint32_t> inbox_size_{0};

  std::atomic<std::uint32_t> work_{0};  // the background thread sleeps on it
  std::atomic<bool> background_asleep_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tessera::comm
