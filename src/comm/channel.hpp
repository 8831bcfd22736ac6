// Internal. A group whose members exchange through shared memory: their places, and how far each of them is.
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "comm/operation.hpp"
#include "comm/shared_memory.hpp"

namespace tessera::comm {

class SharedEngine;

// One group as seen by its driver: where each member stands. What the others wrote is checked: the calls that look at it throw corrupt,
// naming the rank, for what no member that keeps the order of collectives writes.
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
    std::uint64_t seen = 0;  // the progress at the last look
    std::byte* staging = nullptr;
    Doorbell* doorbell = nullptr;
  };
  bool locate(std::size_t member);
  std::uint64_t progress_of(std::size_t member);
  SharedEngine& engine_;
  std::shared_ptr<Group::State> group_;
  std::vector<Member> members_;
};

}  // namespace tessera::comm
