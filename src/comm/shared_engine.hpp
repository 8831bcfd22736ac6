// Internal. Runs the collectives of groups whose members share a host, and the messages between two such ranks. Whoever
// waits for one of these drives the engine, so that a plain call switches no threads; its own thread drives it while nobody waits.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/control.hpp"
#include "comm/operation.hpp"
#include "comm/shared_memory.hpp"
#include "comm/shared_messages.hpp"

namespace tessera::comm {

class SharedEngine;

// One group as seen by its driver: where each member stands.
class Channel {
 public:
  Channel(SharedEngine& engine, std::shared_ptr<Group::State> group);

  // co_await wait: continues once `rank` (all members when negative) has come to `progress`.
  struct Wait {
    Channel& channel;
    int rank;
    std::uint64_t progress;
    bool await_ready() const { return channel.reached(rank, progress); }
    void await_suspend(std::coroutine_handle<> waiter);
    void await_resume() const {}
  };
  Wait all_at(std::uint64_t progress) { return {*this, -1, progress}; }
  Wait one_at(int rank, std::uint64_t progress) { return {*this, rank, progress}; }
  // Tells the members that this rank has come to `progress`, and that what it wrote before can be read.
  void publish(std::uint64_t progress);

  std::size_t size() const { return members_.size(); }
  std::size_t rank() const { return static_cast<std::size_t>(group_->rank); }
  // The half of this member's staging that block `block` uses: kBlock bytes to show, then the reduced part.
  std::byte* half(std::size_t member, std::uint64_t block) const { return members_[member].staging + (block % 2) * kHalf; }
  // Only once everybody has finished the block before the last: a slower member may still read the card there.
  void show_card(const Operation& operation);
  // False (and the task ends) when the members' cards differ from ours; `rank` negative: all members.
  bool compare_cards(const Operation& operation, int rank);
  std::uint64_t next_block = 0;

  // For the driver.
  bool reached(int rank, std::uint64_t progress);
  bool can_continue();
  std::vector<int> missing();
  std::deque<OperationPointer> queue;  // the first one runs
  std::coroutine_handle<> waiter;      // the running collective, while it waits
  int awaited_rank = -1;
  std::uint64_t awaited_progress = 0;

 private:
  struct Member {
    ChannelHeader* header = nullptr;
    std::byte* staging = nullptr;
    Doorbell* doorbell = nullptr;
  };
  bool locate(std::size_t member);
  SharedEngine& engine_;
  std::shared_ptr<Group::State> group_;
  std::vector<Member> members_;
};

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
  void fail(const Failure& failure) override;

  const Segment& segment(int world_rank) const { return segments_[static_cast<std::size_t>(world_rank)]; }
  Segment& own_segment() { return segments_[static_cast<std::size_t>(own_rank_)]; }

 private:
  template <typename Predicate>
  void drive_until(const Predicate& enough);
  bool step();
  bool take_inbox();
  bool anything_to_do();
  template <typename Predicate>
  void idle(const Predicate& enough);
  void look_at_clock(SteadyClock::time_point now);
  bool impatient() const;
  void run(Channel& channel);
  SharedMessages& messages_with(const Operation& operation);
  void start(const OperationPointer& operation);
  void end_all();
  void background();
  Channel& channel_of(const std::shared_ptr<Group::State>& group);

  Engine& engine_;
  const int own_rank_;
  std::vector<Segment> segments_;

  std::mutex driver_;  // held by the one thread that drives; guards what follows
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
