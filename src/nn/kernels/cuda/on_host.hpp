// Internal: the language of the kernels on the host, so that tests run their very code without a GPU. Blocks run one after another; the
// threads of a block take turns on one thread of the host, each until its next barrier. Every thread of a block must reach the same
// barriers and shuffles, which is stricter than CUDA.
#pragma once

#include <setjmp.h>
#include <ucontext.h>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "nn/kernels/element.hpp"

#define __global__
#define __device__
#define __grid_constant__
#define __shared__ static  // one block at a time

namespace tessera::nn::kernels::cuda {

struct Index {
  unsigned x = 0;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;

namespace on_host {

// Each thread has a stack of its own, and goes on there from block to block.
class Threads {
 public:
  void run(unsigned count, const std::function<void()>& body) {
    body_ = &body;
    while (threads_.size() < count) {
      threads_.push_back(std::make_unique<Thread>());
      threads_.back()->stack = std::make_unique_for_overwrite<char[]>(kStack);
    }
    values_.resize(count);
    for (unsigned t = 0; t < count; ++t) threads_[t]->done = false;
    go_on(0);
    // What the first one does without a barrier, the others do: they need no stacks.
    if (threads_[0]->done) {
      for (threadIdx.x = 1; threadIdx.x < count; ++threadIdx.x) body();
      return;
    }
    for (unsigned t = 1; t < count; ++t) go_on(t);
    while (!threads_[0]->done)
      for (unsigned t = 0; t < count; ++t) go_on(t);
  }

  void wait() {
    if (_setjmp(threads_[threadIdx.x]->place) == 0) _longjmp(host_, 1);
  }

  float exchange(float value, unsigned with) {
    values_[threadIdx.x] = value;
    wait();
    const float other = values_[threadIdx.x ^ with];
    wait();
    return other;
  }

  static Threads& all() {
    static Threads threads;
    return threads;
  }

 private:
  static constexpr std::size_t kStack = 64 << 10;
  struct Thread {
    ucontext_t beginning;
    jmp_buf place;
    std::unique_ptr<char[]> stack;
    bool started = false;
    bool done = false;
  };

  // A jump between stacks makes no system call; a change of contexts, which alone can begin on another stack, makes two.
  void go_on(unsigned t) {
    threadIdx.x = t;
    Thread& thread = *threads_[t];
    if (_setjmp(host_) != 0) return;
    if (thread.started) _longjmp(thread.place, 1);
    thread.started = true;
    getcontext(&thread.beginning);
    thread.beginning.uc_stack = {.ss_sp = thread.stack.get(), .ss_flags = 0, .ss_size = kStack};
    thread.beginning.uc_link = nullptr;
    makecontext(&thread.beginning, &Threads::live, 0);
    setcontext(&thread.beginning);
  }

  static void live() {
    for (Threads& self = all();;) {
      (*self.body_)();
      self.threads_[threadIdx.x]->done = true;
      self.wait();
    }
  }

  const std::function<void()>* body_ = nullptr;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<float> values_;
  jmp_buf host_;
};

inline void run(unsigned blocks, unsigned threads, const std::function<void()>& body) {
  static std::mutex one_grid;  // guards all that is static here and in kernels
  const std::lock_guard lock(one_grid);
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) Threads::all().run(threads, body);
}

}  // namespace on_host

inline void __syncthreads() { on_host::Threads::all().wait(); }
inline float __shfl_xor_sync(unsigned, float value, int with) {
  return on_host::Threads::all().exchange(value, static_cast<unsigned>(with));
}

}  // namespace tessera::nn::kernels::cuda
