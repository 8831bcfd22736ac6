// Internal. The communicator: takes operations from any thread, orders them, runs them on its progress thread, and knows
// who is still there.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "comm/control.hpp"
#include "comm/device_engine.hpp"
#include "comm/network.hpp"
#include "comm/operation.hpp"
#include "comm/rendezvous.hpp"
#include "comm/self_messages.hpp"
#include "comm/shared_engine.hpp"

namespace tessera::comm {

// The error that waiting ranks get.
Error to_error(const Failure& failure);
Failure out_of_memory(int rank);

class Engine final : public Communicator {
 public:
  explicit Engine(const Options& options);
  ~Engine() override;

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }
  Group world() override;
  Group group(const std::vector<int>& ranks, std::string_view label) override;
  void set_place(std::function<std::string()> place) override;
  void on_failure(std::function<void(const Error&)> call) override;
  std::map<std::string, Traffic> traffic() const override;
  void abort(const std::string& reason) override;

  Handle submit(OperationPointer operation);
  const std::shared_ptr<const CudaDevice>& device() const { return device_->device(); }
  // Ends every pending and future operation of every rank; the first call wins. From any thread.
  void fail(const Failure& failure);
  // For a catch block in a thread of this room, whatever was thrown: as fail(), naming this rank where the exception names none.
  void fail_with_current_exception() noexcept;
  // What fail() was called with, or none.
  std::shared_ptr<const Error> failure() const;
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }
  // For whoever has run the operation.
  void complete(const OperationPointer& operation, std::shared_ptr<const Error> error = nullptr);
  // Ends everything with deadline_exceeded; `operation.waiting_for` says for whom.
  void give_up(const Operation& operation);

 private:
  struct Turns;
  void progress_loop();
  bool turn(Turns& turns);
  void begin_to_fail(std::shared_ptr<const Error> error, std::shared_ptr<const Failure> told);
  void wake();
  void sleep();
  // Starts what has been submitted in the calling thread, if the progress thread sleeps: where all cores compute, that thread may not be
  // run for milliseconds after it was woken.
  void start_at_once();
  void take_inbox();
  void start_network(const OperationPointer& operation);
  void start_next(const Group::State* group);
  void after_resume(Operation* operation);
  void resume_ready();
  void check_broken(SteadyClock::time_point now);
  void check_time(SteadyClock::time_point now);
  void end_network_operations() noexcept;
  void on_failed(const Failure& failure);
  void on_closing(const Closing& closing);
  std::shared_ptr<Group::State> fresh_state(const std::vector<int>& ranks, std::string label, bool on_device);
  bool have_devices(const std::vector<int>& ranks) const;
  bool out_of_reach(const Operation& operation) const;
  bool shares_memory(const Operation& operation) const;
  std::string missed_heartbeats();
  std::string place();
  void copy_alone(Operation& operation);
  Joined joined_collectives();
  std::vector<Segment> share_memory(Meeting& meeting, Segment own);

  const Options options_;
  std::vector<Introduction> peers_;

  // Made while there was memory, for when there is none.
  const std::shared_ptr<const Failure> last_words_;
  const std::shared_ptr<const Error> last_error_;
  const std::shared_ptr<const Error> closed_error_ =
      std::make_shared<const Error>(ErrorCode::interrupted, "the communicator was closed while the operation was under way");

  std::mutex driving_;  // guards what follows up to the next one; held by the progress thread while it does not sleep
  std::unique_ptr<Network> network_;
  std::unique_ptr<Control> control_;
  std::deque<OperationPointer> arriving_;                                         // from the inbox; not yet in one of the next two
  std::unordered_map<const Group::State*, std::deque<OperationPointer>> queues_;  // collectives; the first one runs
  std::unordered_map<Operation*, OperationPointer> messages_;
  std::map<int, SteadyClock::time_point> suspects_;  // world rank -> when its connection broke
  std::string suspect_reason_;
  bool network_ended_ = false;

  mutable std::mutex mutex_;  // guards what follows
  std::map<std::pair<std::vector<int>, std::string>, std::shared_ptr<Group::State>> groups_;
  std::vector<OperationPointer> inbox_;
  std::unordered_set<Operation*> pending_;
  std::shared_ptr<const Error> failure_;
  std::shared_ptr<const Failure> to_tell_;                            // a failure that this rank found and the others must hear of
  std::map<int, std::pair<SteadyClock::time_point, Joined>> closed_;  // peers that have closed: when, and what they had joined
  bool closing_ = false;
  bool announce_closing_ = false;
  bool all_closed_ = false;
  bool stop_ = false;
  std::condition_variable changed_;

  std::mutex place_mutex_;  // guards place_, also while it is called
  std::function<std::string()> place_;
  std::mutex on_failure_mutex_;  // guards on_failure_, also while it is called
  std::function<void(const Error&)> on_failure_;

  std::atomic<bool> failed_{false};  // failure_ is set
  std::vector<int> host_of_;         // by world rank; ranks of one host share memory
  std::vector<std::string> gpu_of_;  // by world rank
  SelfMessages self_messages_;
  std::unique_ptr<SharedEngine> shared_;  // none when no other rank is on this host
  std::unique_ptr<DeviceEngine> device_;  // none without a GPU
  Descriptor wake_descriptor_;
  Descriptor epoll_;
  std::atomic<bool> wake_pending_{false};
  std::thread thread_;
};

}  // namespace tessera::comm
