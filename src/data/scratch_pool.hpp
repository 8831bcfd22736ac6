// internal: working memory that calls from several threads take turns with.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tessera::data {

template <typename Scratch>
class ScratchPool {
 public:
  // Holds one Scratch until it ends; gives it back even when an exception passes.
  class Lease {
   public:
    Lease(ScratchPool& pool, std::unique_ptr<Scratch> scratch) : pool_(pool), scratch_(std::move(scratch)) {}
    ~Lease() {
      const std::lock_guard lock(pool_.mutex_);
      pool_.idle_.push_back(std::move(scratch_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Scratch& operator*() const { return *scratch_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<Scratch> scratch_;
  };

  // An idle one, or what `make` returns (a std::unique_ptr) when there is none.
  template <typename Make>
  Lease take(Make make) {
    std::unique_ptr<Scratch> scratch;
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        scratch = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    return Lease(*this, scratch ? std::move(scratch) : make());
  }

 private:
  std::mutex mutex_;  // guards idle_
  std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace tessera::data
