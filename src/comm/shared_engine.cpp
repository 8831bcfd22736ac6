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

Channel::Channel(SharedEngine& engine, std::shared_ptr<Group::State> group)
    : engine_(engine), group_(std::move(group)), members_(group_->ranks.size()) {
  engine_.own_segment().claim(group_->key);
  locate(rank());
  for (Member& member : members_) {
    const std::size_t index = static_cast<std::size_t>(&member - members_.data());
    member.doorbell = &engine_.segment(group_->ranks[index]).header().doorbell;
  }
}

bool Channel::locate(std::size_t index) {
  Member& member = members_[index];
  if (member.header) return true;
  const Segment& segment = engine_.segment(group_->ranks[index]);
  const std::size_t place = segment.find(group_->key);
  if (place == kChannels) return false;
  member.header = &segment.header().channels[place];
  member.staging = segment.staging(place);
  return true;
}

bool Channel::reached(int rank, std::uint64_t progress) {
  if (progress == 0) return true;
  const std::size_t first = rank < 0 ? 0 : static_cast<std::size_t>(rank);
  const std::size_t last = rank < 0 ? members_.size() : first + 1;
  for (std::size_t index = first; index < last; ++index) {
    if (!locate(index) || members_[index].header->progress.load(std::memory_order_seq_cst) < progress) {
      if (rank < 0 && index == this->rank()) continue;
      return false;
    }
  }
  return true;
}

void Channel::Wait::await_suspend(std::coroutine_handle<> waiting) {
  channel.waiter = waiting;
  channel.awaited_rank = rank;
  channel.awaited_progress = progress;
}

bool Channel::can_continue() { return waiter && reached(awaited_rank, awaited_progress); }

std::vector<int> Channel::missing() {
  std::vector<int> ranks;
  for (std::size_t index = 0; index < members_.size(); ++index) {
    const bool awaited = index != rank() && (awaited_rank < 0 || static_cast<std::size_t>(awaited_rank) == index);
    if (awaited && !reached(static_cast<int>(index), awaited_progress)) ranks.push_back(static_cast<int>(index));
  }
  return ranks;
}

void Channel::publish(std::uint64_t progress) {
  // Sequentially consistent with the sleeper's asleep flag and its last look: either it sees this, or it is rung.
  members_[rank()].header->progress.store(progress, std::memory_order_seq_cst);
  for (std::size_t index = 0; index < members_.size(); ++index) {
    if (index != rank()) members_[index].doorbell->ring_if_asleep();
  }
}

void Channel::show_card(const Operation& operation) { members_[rank()].header->cards[operation.sequence % 2] = card_of(operation); }

bool Channel::compare_cards(const Operation& operation, int rank) {
  for (std::size_t index = 0; index < members_.size(); ++index) {
    if (index == this->rank() || (rank >= 0 && static_cast<std::size_t>(rank) != index)) continue;
    if (!check_card(operation, members_[index].header->cards[operation.sequence % 2], static_cast<int>(index))) return false;
  }
  return true;
}

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
    if (!step()) idle(enough);
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
  return messages_.try_emplace(peer, *this, own_segment().mail_to(peer), theirs.mail_to(own_rank_), theirs.header().doorbell, buffered_)
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

bool SharedEngine::take_inbox() {
  std::vector<OperationPointer> arrived;
  {
    const std::lock_guard lock(inbox_mutex_);
    arrived.swap(inbox_);
    inbox_size_.store(0);
  }
  for (OperationPointer& operation : arrived) {
    try {
      start(operation);
    } catch (const Error& error) {
      engine_.fail({error.code(), error.where().rank, error.message()});
      finish(operation, engine_.failure());
    }
  }
  return !arrived.empty();
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
    std::shared_ptr<const Error> error;
    try {
      operation->task.result();
    } catch (const Error& problem) {
      error = std::make_shared<const Error>(problem);
    }
    operation->task = Task();
    channel.queue.pop_front();
    finish(operation, error);
  }
}

void SharedEngine::finish(const OperationPointer& operation, std::shared_ptr<const Error> error) {
  unfinished_.fetch_sub(1);
  engine_.complete(operation, std::move(error));
}

void SharedEngine::fail(const Failure& failure) { engine_.fail(failure); }

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

void SharedEngine::end_all() {
  take_inbox();
  const std::shared_ptr<const Error> reason = engine_.failure();
  for (Channel* channel : active_) {
    channel->waiter = nullptr;
    for (const OperationPointer& operation : std::exchange(channel->queue, {})) {
      operation->task = Task();
      finish(operation, reason);
    }
  }
  active_.clear();
  for (auto& [peer, messages] : messages_) messages.end(reason);
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
