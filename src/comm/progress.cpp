// The progress thread of an Engine.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "comm/engine.hpp"
#include "comm/network_collectives.hpp"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTick(100);
// A broken connection is a symptom; within this time the control channel usually says who is lost and why.
constexpr milliseconds kSuspicion(500);
// What a rank sent before it closed may still be on its way.
constexpr milliseconds kStragglers(1000);
constexpr milliseconds kLastWords(300);
// Who ends the task leaves its connections so long, for the others to hear why first.
constexpr milliseconds kHeadStart(250);
// After a second exception.
constexpr milliseconds kAgain(10);

}  // namespace

void Engine::wake() {
  if (!wake_descriptor_ || wake_pending_.exchange(true)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_descriptor_.get(), &one, sizeof one);
}

void Engine::sleep() {
  std::array<epoll_event, 16> events;
  driving_.unlock();
  epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), static_cast<int>(kTick.count()));
  driving_.lock();
  std::uint64_t count = 0;
  if (wake_pending_) [[maybe_unused]]
    const ssize_t got = ::read(wake_descriptor_.get(), &count, sizeof count);
  wake_pending_ = false;
}

// What the progress thread remembers from turn to turn.
struct Engine::Turns {
  SteadyClock::time_point last_look = SteadyClock::now();
  bool announced = false;
  SteadyClock::time_point others_know = SteadyClock::time_point::min();
};

void Engine::progress_loop() {
  const std::lock_guard driving(driving_);
  Turns turns;
  bool more = true;
  while (more) {
    const bool failed = has_failed();
    try {
      more = turn(turns);
    } catch (...) {
      fail_with_current_exception();
      // Not for the first time: whoever waits must not wait for a turn that goes well.
      if (failed && !network_ended_) end_network_operations();
      if (failed) std::this_thread::sleep_for(kAgain);
      const std::lock_guard lock(mutex_);
      more = !stop_;
    }
  }
  if (!network_ended_) {
    std::this_thread::sleep_until(turns.others_know);
    end_network_operations();
  }
  const auto give_up = SteadyClock::now() + kLastWords;
  while (!control_->flushed() && SteadyClock::now() < give_up) std::this_thread::sleep_for(milliseconds(5));
}

// False once it is to end.
bool Engine::turn(Turns& turns) {
  take_inbox();
  const bool moved = !network_ended_ && network_->progress();
  resume_ready();
  const auto now = SteadyClock::now();
  if (!moved || now - turns.last_look > milliseconds(20)) {
    turns.last_look = now;
    control_->read();
    control_->tick(now);
    check_broken(now);
    check_time(now);
  }
  bool failed = false;
  bool stop = false;
  bool announce = false;
  std::shared_ptr<const Failure> news;
  {
    const std::lock_guard lock(mutex_);
    failed = failure_ != nullptr;
    news = std::exchange(to_tell_, nullptr);
    stop = stop_;
    announce = announce_closing_ && !turns.announced;
  }
  if (news) {
    control_->tell_failed(*news);
    turns.others_know = now + kHeadStart;
  }
  if (failed && !network_ended_ && now >= turns.others_know) end_network_operations();
  if (announce && !failed) control_->tell_closing(joined_collectives());
  turns.announced |= announce;
  if (stop) return false;
  if (moved) return true;
  if (failed && !network_ended_) {
    std::this_thread::sleep_until(turns.others_know);
    return true;
  }
  if (network_ended_ || network_->arm()) sleep();
  return true;
}

void Engine::start_at_once() {
  const std::unique_lock driving(driving_, std::try_to_lock);
  if (!driving) return;
  try {
    take_inbox();
  } catch (...) {
    fail_with_current_exception();
  }
}

// An operation leaves a queue only once it is in the next one, so that whatever is thrown on the way, all of them are ended.
void Engine::take_inbox() {
  {
    const std::lock_guard lock(mutex_);
    arriving_.insert(arriving_.end(), inbox_.begin(), inbox_.end());
    inbox_.clear();
  }
  while (!arriving_.empty()) {
    const OperationPointer operation = arriving_.front();
    if (network_ended_) {
      arriving_.pop_front();
      complete(operation, failure());
    } else if (!operation->collective()) {
      messages_[operation.get()] = operation;
      arriving_.pop_front();
      start_network(operation);
    } else {
      auto& queue = queues_[operation->group.get()];
      queue.push_back(operation);
      arriving_.pop_front();
      if (queue.size() == 1) start_network(operation);
    }
  }
}

void Engine::start_network(const OperationPointer& operation) {
  operation->task = run_over_network(*network_, *operation);
  operation->task.start();
  after_resume(operation.get());
}

void Engine::after_resume(Operation* operation) {
  if (!operation->task.done()) return;
  try {
    operation->task.result();
  } catch (...) {
    return fail_with_current_exception();
  }
  if (!operation->collective()) {
    const OperationPointer message = std::move(messages_.at(operation));
    messages_.erase(operation);
    message->task = Task();
    complete(message);
    return;
  }
  const Group::State* group = operation->group.get();
  auto& queue = queues_.at(group);
  const OperationPointer finished = std::move(queue.front());
  queue.pop_front();
  finished->task = Task();
  complete(finished);
  start_next(group);
}

void Engine::start_next(const Group::State* group) {
  const auto found = queues_.find(group);
  if (found->second.empty()) {
    queues_.erase(found);
  } else {
    const OperationPointer next = found->second.front();
    start_network(next);
  }
}

void Engine::resume_ready() {
  if (network_ended_) return;
  for (const Network::Ready& ready : network_->take_ready()) {
    ready.waiter.resume();
    after_resume(ready.operation);
  }
}

void Engine::check_broken(SteadyClock::time_point now) {
  for (const auto& [rank, reason] : network_->take_broken()) {
    if (control_->has_closed(rank)) continue;
    suspects_.try_emplace(rank, now);
    suspect_reason_ = reason;
  }
  for (const auto& [rank, since] : suspects_) {
    if (now - since > kSuspicion && !control_->has_closed(rank)) {
      fail({ErrorCode::peer_lost, rank,
            text("rank ", rank, " is lost: the connection to it broke (", suspect_reason_, ")", control_->last_at(rank))});
    }
  }
}

void Engine::check_time(SteadyClock::time_point now) {
  OperationPointer overdue;
  int left = -1;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    for (Operation* operation : pending_) {
      if (!operation->helper && now > operation->deadline && (!overdue || operation->deadline < overdue->deadline))
        overdue = operation->shared_from_this();
      if (closed_.empty()) continue;
      for (const int rank : operation->group->ranks) {
        const auto found = closed_.find(rank);
        if (found != closed_.end() && out_of_reach(*operation)) left = rank;
      }
    }
  }
  if (left >= 0)
    return fail(
        {ErrorCode::peer_lost, left, text("rank ", left, " is lost: it closed its communicator while this task was still at work")});
  if (!overdue) return;
  const bool known_peer = !overdue->collective() && (overdue->peer == overdue->group->rank || overdue->group->on_device);
  overdue->waiting_for = known_peer ? std::vector<int>{overdue->peer} : network_->awaited_by(*overdue);
  give_up(*overdue);
}

// Called with mutex_ held: whether a rank that has closed will never do its part of this operation.
bool Engine::out_of_reach(const Operation& operation) const {
  const auto now = SteadyClock::now();
  for (std::size_t i = 0; i < operation.group->ranks.size(); ++i) {
    const auto found = closed_.find(operation.group->ranks[i]);
    if (found == closed_.end()) continue;
    const auto& [when, joined] = found->second;
    if (operation.collective()) {
      const auto count = joined.find(operation.group->key);
      if (operation.sequence >= (count == joined.end() ? 0 : count->second)) return true;
    } else if (static_cast<int>(i) == operation.peer && now - when > kStragglers) {
      return true;
    }
  }
  return false;
}

void Engine::on_closing(const Closing& closing) {
  const std::lock_guard lock(mutex_);
  closed_[closing.rank] = {SteadyClock::now(), closing.joined};
}

Joined Engine::joined_collectives() {
  std::vector<std::shared_ptr<Group::State>> groups;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, group] : groups_) {
      groups.push_back(group);
      if (group->devices) groups.insert(groups.end(), {group->devices, group->devices->ids});
    }
  }
  Joined joined;
  for (const auto& group : groups) {
    const std::lock_guard order(group->mutex);
    if (group->next_sequence > 0) joined[group->key] = group->next_sequence;
  }
  return joined;
}

void Engine::end_network_operations() noexcept {
  network_ended_ = true;
  try {
    network_->abandon();
  } catch (...) {
    // No memory to cancel what is under way; it ends with the process.
  }
  std::shared_ptr<const Error> reason = failure();
  if (!reason) reason = closed_error_;
  const auto end = [&](const OperationPointer& operation) {
    if (operation->done()) return;
    operation->task = Task();
    complete(operation, reason);
  };
  while (const OperationPointer operation = self_messages_.take_one()) end(operation);
  for (auto& [group, queue] : queues_) std::for_each(queue.begin(), queue.end(), end);
  for (auto& [key, operation] : messages_) end(operation);
  std::for_each(arriving_.begin(), arriving_.end(), end);
  queues_.clear();
  messages_.clear();
  arriving_.clear();
  std::vector<OperationPointer> never_begun;
  {
    const std::lock_guard lock(mutex_);
    never_begun.swap(inbox_);
  }
  std::for_each(never_begun.begin(), never_begun.end(), end);
}

}  // namespace tessera::comm
