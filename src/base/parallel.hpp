// Work that is shared among threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {

// The number of the machine's cores.
inline std::size_t threads_of_machine() { return std::thread::hardware_concurrency() > 0 ? std::thread::hardware_concurrency() : 1; }

// Calls work(thread, i) for every i below `count`, each once, on up to `threads` threads numbered from 0, of which the caller is the first;
// returns when all are done. When a call throws, its thread takes no further i, and one of the exceptions is thrown again at the end.
template <typename Work>
void in_parallel(std::size_t threads, std::size_t count, const Work& work) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex mutex;  // guards `failure`
  const auto take = [&](std::size_t thread) {
    try {
      for (std::size_t i = next++; i < count; i = next++) work(thread, i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t thread = 1; thread < std::min(threads, count); ++thread) others.emplace_back(take, thread);
    take(0);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tessera
