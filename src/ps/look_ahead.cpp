#include "ps/look_ahead.hpp"

#include <utility>

namespace tessera::ps {

LookAhead::~LookAhead() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LookAhead::begin(std::shared_ptr<Ahead> ahead) {
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(ahead));
  }
  changed_.notify_all();
}

void LookAhead::wait() {
  std::unique_lock lock(mutex_);
  waiting_.clear();
  changed_.wait(lock, [this] { return !busy_; });
}

void LookAhead::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (ends_) return;
    const std::shared_ptr<Ahead> ahead = std::move(waiting_.front());
    waiting_.pop_front();
    if (ahead->unwanted) continue;
    busy_ = true;
    lock.unlock();
    ahead->records.assign(ahead->keys.size(), nullptr);
    ahead->resident =
        search_.find(ahead->keys, ahead->pieces, true, [&](std::size_t item, const std::byte* record) { ahead->records[item] = record; });
    ahead->done.store(true, std::memory_order_release);
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace tessera::ps
