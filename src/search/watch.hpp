// How a search reports its progress, and how its caller stops it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/units.hpp"

namespace tessera::search {

// Any thread may read and write it.
struct Watch {
  std::atomic<bool> stop = false;            // set by the caller: the search ends soon, with the best plan so far
  std::atomic<std::int64_t> considered = 0;  // outer choices so far, in all parts of the search
  std::atomic<Seconds> best = Seconds(0);    // the shortest step so far; 0: no plan yet

  // Reports a plan.
  void found(Seconds step) {
    for (Seconds known = best; (known == Seconds(0) || step < known) && !best.compare_exchange_weak(known, step);) {}
  }
};

inline bool is_set(const std::atomic<bool>* stop) { return stop != nullptr && stop->load(std::memory_order_relaxed); }

}  // namespace tessera::search
