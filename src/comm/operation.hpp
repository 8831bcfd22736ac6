// Internal. What a Group and a Handle point at.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/comm.hpp"
#include "comm/frames.hpp"
#include "comm/levels.hpp"
#include "comm/task.hpp"

namespace tessera::comm {

enum class Kind { send, receive, all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, barrier };
const char* name_of(Kind kind);
const char* name_of(DataType type);
const char* name_of(Reduction reduction);
// "'world' [0 1 2 3]"
std::string name_of(const std::vector<int>& ranks, std::string_view label);

class Engine;
class SharedEngine;

struct Group::State {
  Engine* engine = nullptr;
  std::vector<int> ranks;  // world ranks
  int rank = 0;            // of this process, within the group
  std::vector<int> hosts;  // by group rank: equal for ranks that share memory; below zero: with no other
  std::string label;
  std::uint64_t key = 0;         // hash of ranks and label, the same on every member
  bool shared = false;           // all members exchange through shared memory
  bool on_device = false;        // operations are of the device engine
  std::optional<Levels> levels;  // on which large collectives run

  // The same ranks' operations on devices; none where they have no device each. And, of those, where what NCCL needs to begin passes.
  std::shared_ptr<State> devices;
  std::shared_ptr<State> ids;

  std::mutex mutex;                 // guards next_sequence, and keeps submission order equal to sequence order
  std::uint64_t next_sequence = 0;  // collectives only

  std::atomic<std::int64_t> messages_sent{0};
  std::atomic<std::int64_t> collectives_begun{0};
  std::atomic<std::int64_t> bytes_sent{0};  // to other hosts
  void count_sent(std::size_t bytes, int to_group_rank);
  std::string name() const;
};

// Written at submission, then owned by the engine that runs it until finish().
struct Handle::State : std::enable_shared_from_this<Handle::State> {
  std::shared_ptr<Group::State> group;
  Kind kind = Kind::barrier;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;  // elements, per rank where the collective says so
  DataType type = DataType::u8;
  Reduction reduction = Reduction::sum;
  int peer = -1;  // rank within the group: root of a broadcast, partner of a message
  std::uint32_t tag = 0;
  std::uint64_t sequence = 0;
  SteadyClock::time_point submitted;
  SteadyClock::time_point deadline;
  Task task;                       // the running collective
  std::vector<int> waiting_for;    // group ranks; filled in by the engine before it gives up
  bool running = false;            // the task was made
  SharedEngine* helper = nullptr;  // a waiting thread may drive this engine instead of sleeping

  bool collective() const { return kind != Kind::send && kind != Kind::receive; }
  // "all_reduce #5 of 1024 f32 (sum) in group 'world' [0 1 2 3]"
  std::string description() const;

  bool done() const { return done_.load(std::memory_order_acquire); }
  void finish(std::shared_ptr<const Error> error = nullptr);
  void wait();
  bool wait_for(std::chrono::microseconds patience);
  Seconds elapsed() const;

 private:
  std::atomic<bool> done_{false};
  std::mutex mutex_;  // guards error_ and finished_ until done_
  std::condition_variable finished_signal_;
  std::shared_ptr<const Error> error_;
  SteadyClock::time_point finished_;
};
using Operation = Handle::State;
using OperationPointer = std::shared_ptr<Operation>;

// Throws internal for a group that was never formed.
Group::State& check_formed(const std::shared_ptr<Group::State>& group);
void describe(Operation& operation, const std::shared_ptr<Group::State>& group, Kind kind, const void* input, void* output,
              std::size_t count, DataType type);
// Throws internal for one that is not in the group; `what` it is.
void set_peer(Operation& operation, int peer, const char* what);

}  // namespace tessera::comm
