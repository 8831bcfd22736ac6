// Internal. Runs the collectives of groups whose members share a host. Whoever waits for such a collective drives the
// engine, so that a plain call switches no threads; its own thread drives it while nobody waits.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/operation.hpp"
#include "comm/shared_memory.hpp"

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
  std::deque<OperationPointer> queue;       // the first one runs
  std::coroutine_handle<> waiter;           // the running collective, while it waits
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

class SharedEngine {
 public:
  // `segments` by world rank; empty for ranks of other hosts.
  SharedEngine(Engine& engine, int own_rank, std::vector<Segment> segments);
  ~SharedEngine();

  void submit(OperationPointer operation);
  // Drives the engine until the operation is done, or leaves it to the thread that drives already.
  void help(Operation& operation);
  // The task has failed: everything ends.
  void wake();

  const Segment& segment(int world_rank) const { return segments_[static_cast<std::size_t>(world_rank)]; }
  Segment& own_segment() { return segments_[static_cast<std::size_t>(own_rank_)]; }

 private:
  template <typename Predicate>
  void drive_until(const Predicate& enough);
  bool step();
  bool take_inbox();
  bool anything_to_do();
  void idle();
  void check_deadlines();
  void run(Channel& channel);
  void end_all();
  void background();
  Channel& channel_of(const std::shared_ptr<Group::State>& group);

  Engine& engine_;
  const int own_rank_;
  std::vector<Segment> segments_;

  std::mutex driver_;  // held by the one thread that drives; guards channels_ and active_
  std::map<const Group::State*, std::unique_ptr<Channel>> channels_;
  std::vector<Channel*> active_;

  std::mutex inbox_mutex_;  // guards inbox_
  std::vector<OperationPointer> inbox_;
  std::atomic<std::size_t> unfinished_{0};
  std::atomic<std::uint32_t> inbox_size_{0};

  std::atomic<std::uint32_t> work_{0};       // the background thread sleeps on it
  std::atomic<bool> background_asleep_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tessera::comm
