#include "comm/shared_engine.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "comm/engine.hpp"
#include "comm/shared_collectives.hpp"

namespace tessera::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A partner on another core usually comes within this time; sleeping and waking costs about as much.
constexpr microseconds kPause(40);
constexpr milliseconds kLook(100);
// A call that is waited for at once is driven by its caller; the background thread only steps in after this time.
constexpr microseconds kNap(150);
// How often a thread that waits tries to become the one that drives before it sleeps.
constexpr int kAttempts = 32;
// Naps go on this long after the last operation; then the thread sleeps until it is called.
constexpr milliseconds kBurst(4);

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  word.fetch_add(1);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

SharedEngine::SharedEngine(Engine& engine, int own_rank, std::vector<Segment> segments)
    : engine_(engine), own_rank_(own_rank), segments_(std::move(segments)) {
  thread_ = std::thread([this] { background(); });
}

SharedEngine::~SharedEngine() {
  stop_ = true;
  wake();
  thread_.join();
}

void SharedEngine::wake() {
  futex_wake(work_);
  own_segment().header().doorbell.ring();
}

void SharedEngine::submit(OperationPointer operation) {
  operation->helper = this;
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_.push_back(std::move(operation));
    inbox_size_.fetch_add(1);
  }
  unfinished_.fetch_add(1);
  own_segment().header().doorbell.ring_if_asleep();
  if (background_asleep_.load()) futex_wake(work_);
}

void SharedEngine::help(Operation& operation) {
  const auto done = [&operation] { return operation.done(); };
  helpers_.fetch_add(1);
  own_segment().header().doorbell.ring_if_asleep();
  for (int attempt = 0; !done(); ++attempt) {
    if (driver_.try_lock()) {
      const std::lock_guard lock(driver_, std::adopt_lock);
      drive_until(done);
    } else if (attempt < kAttempts) {
      sched_yield();
    } else {
      // Another thread drives for an operation of its own; should it leave before this one is done, this thread takes over.
      operation.wait_for(kNap);
    }
  }
  helpers_.fetch_sub(1);
}

template <typename Predicate>
void SharedEngine::drive_until(const Predicate& enough) {
  while (!enough()) {
    try {
      if (!step()) idle(enough);
    } catch (...) {
      engine_.fail_with_current_exception();
    }
  }
}

bool SharedEngine::step() {
  if (engine_.has_failed()) {
    end_all();
    return true;
  }
  bool moved = inbox_size_.load() > 0 && take_inbox();
  for (std::size_t i = 0; i < active_.size();) {
    Channel& channel = *active_[i];
    if (!channel.can_continue()) {
      ++i;
      continue;
    }
    moved = true;
    std::exchange(channel.waiter, nullptr).resume();
    run(channel);
    if (channel.queue.empty()) {
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  for (auto& [peer, messages] : messages_) moved |= messages.step();
  return moved;
}

Channel& SharedEngine::channel_of(const std::shared_ptr<Group::State>& group) {
  auto& channel = channels_[group.get()];
  if (!channel) channel = std::make_unique<Channel>(*this, group);
  return *channel;
}

SharedMessages& SharedEngine::messages_with(const Operation& operation) {
  const int peer = operation.group->ranks[static_cast<std::size_t>(operation.peer)];
  const auto found = messages_.find(peer);
  if (found != messages_.end()) return found->second;
  const Segment& theirs = segment(peer);
  return messages_
      .try_emplace(peer, *this, peer, own_segment().mail_to(peer), theirs.mail_to(own_rank_), theirs.header().doorbell, buffered_)
      .first->second;
}

void SharedEngine::start(const OperationPointer& operation) {
  if (!operation->collective()) return messages_with(*operation).submit(operation);
  Channel& channel = channel_of(operation->group);
  channel.queue.push_back(operation);
  if (channel.queue.size() > 1) return;
  active_.push_back(&channel);
  run(channel);
  if (channel.queue.empty()) std::erase(active_, &channel);
}

// An operation stays until it has been started, so that it is ended with the others when that throws.
bool SharedEngine::take_inbox() {
  {
    const std::lock_guard lock(inbox_mutex_);
    arriving_.insert(arriving_.end(), inbox_.begin(), inbox_.end());
    inbox_.clear();
    inbox_size_.store(0);
  }
  const bool any = !arriving_.empty();
  for (; !arriving_.empty(); arriving_.pop_front()) start(arriving_.front());
  return any;
}

// Runs the channel's operations until one has to wait.
void SharedEngine::run(Channel& channel) {
  while (!channel.queue.empty()) {
    const OperationPointer operation = channel.queue.front();
    if (!operation->running) {
      operation->running = true;
      operation->task = run_in_shared_memory(channel, *operation);
      operation->task.start();
    }
    if (!operation->task.done()) return;
    operation->task.result();
    operation->task = Task();
    channel.queue.pop_front();
    finish(operation, nullptr);
  }
}

void SharedEngine::finish(const OperationPointer& operation, std::shared_ptr<const Error> error) {
  // One that failed while it was started may stand in two places.
  if (operation->done()) return;
  unfinished_.fetch_sub(1);
  engine_.complete(operation, std::move(error));
}

bool SharedEngine::anything_to_do() {
  if (engine_.has_failed() || inbox_size_.load() > 0 || stop_) return true;
  return std::any_of(active_.begin(), active_.end(), [](Channel* channel) { return channel->can_continue(); }) ||
         std::any_of(messages_.begin(), messages_.end(), [](const auto& one) { return one.second.can_step(); });
}

bool SharedEngine::impatient() const {
  return std::any_of(messages_.begin(), messages_.end(), [](const auto& one) { return one.second.impatient(); });
}

template <typename Predicate>
void SharedEngine::idle(const Predicate& enough) {
  const auto started = SteadyClock::now();
  if (started - last_look_ > kLook) look_at_clock(started);
  do {
    for (int look = 0; look < 32; ++look) {
      if (enough() || anything_to_do()) return;
      __builtin_ia32_pause();
    }
    sched_yield();
  } while (SteadyClock::now() - started < kPause);
  Doorbell& bell = own_segment().header().doorbell;
  const std::uint32_t seen = bell.rings.load();
  bell.asleep.store(1, std::memory_order_seq_cst);
  if (!enough() && !anything_to_do()) bell.sleep(seen, impatient() ? microseconds(SharedMessages::kPatience) : microseconds(kLook));
  bell.asleep.store(0, std::memory_order_seq_cst);
  look_at_clock(SteadyClock::now());
}

void SharedEngine::look_at_clock(SteadyClock::time_point now) {
  last_look_ = now;
  for (Channel* channel : active_) {
    Operation& operation = *channel->queue.front();
    if (now < operation.deadline) continue;
    operation.waiting_for = channel->missing();
    if (!operation.waiting_for.empty()) return engine_.give_up(operation);
  }
  for (auto& [peer, messages] : messages_) {
    messages.buffer_waiting(now);
    if (const OperationPointer overdue = messages.overdue(now)) {
      overdue->waiting_for = {overdue->peer};
      return engine_.give_up(*overdue);
    }
  }
}

// Takes no memory, which may be what has run out.
void SharedEngine::end_all() noexcept {
  const std::shared_ptr<const Error> reason = engine_.failure();
  for (Channel* channel : active_) {
    channel->waiter = nullptr;
    for (const OperationPointer& operation : channel->queue) {
      operation->task = Task();
      finish(operation, reason);
    }
    channel->queue.clear();
  }
  active_.clear();
  for (auto& [peer, messages] : messages_) messages.end(reason);
  for (; !arriving_.empty(); arriving_.pop_front()) finish(arriving_.front(), reason);
  while (const OperationPointer operation = take_one()) finish(operation, reason);
}

OperationPointer SharedEngine::take_one() {
  const std::lock_guard lock(inbox_mutex_);
  if (inbox_.empty()) return nullptr;
  OperationPointer operation = std::move(inbox_.back());
  inbox_.pop_back();
  inbox_size_.store(static_cast<std::uint32_t>(inbox_.size()));
  return operation;
}

void SharedEngine::background() {
  auto last_work = SteadyClock::now();
  while (!stop_) {
    if (unfinished_.load() > 0) {
      last_work = SteadyClock::now();
      if (driver_.try_lock()) {
        const std::lock_guard lock(driver_, std::adopt_lock);
        drive_until([this] { return unfinished_.load() == 0 || helpers_.load() > 0 || stop_; });
        last_work = SteadyClock::now();
      }
    }
    if (SteadyClock::now() - last_work < kBurst) {
      std::this_thread::sleep_for(kNap);
      continue;
    }
    const std::uint32_t seen = work_.load();
    background_asleep_.store(true);
    if (unfinished_.load() == 0 && !stop_) futex_wait(work_, seen);
    background_asleep_.store(false);
    if (stop_) break;
    // Give the caller the chance to wait for, and so to drive, what it has just started.
    std::this_thread::sleep_for(kNap);
    last_work = SteadyClock::now();
  }
}

}  // namespace tessera::comm
