#include "ps/fiber_helper.hpp"

#include <cxxabi.h>
#include <sys/mman.h>

#include <cstring>
#include <new>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace tessera::ps {
namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 20;  // of which the system gives what is touched

Fiber* running = nullptr;

// Stacks of fibers that have ended are used again.
std::vector<std::byte*>& free_stacks() {
  static std::vector<std::byte*> stacks;
  return stacks;
}

std::byte* take_stack() {
  std::vector<std::byte*>& free = free_stacks();
  if (!free.empty()) {
    std::byte* const stack = free.back();
    free.pop_back();
    return stack;
  }
  void* const mapped = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(mapped);
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(take_stack()) {
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack_;
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = nullptr;
  makecontext(&own_, &Fiber::run, 0);
#if defined(__SANITIZE_THREAD__)
  thread_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(thread_);
#endif
  free_stacks().push_back(stack_);
}

void Fiber::resume() {
  running = this;
  void* const exceptions = abi::__cxa_get_globals();
  std::memcpy(exceptions_of_resumer_.data(), exceptions, exceptions_.size());
  std::memcpy(exceptions, exceptions_.data(), exceptions_.size());
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_of_resumer_, stack_, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  thread_of_resumer_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(thread_, 0);
#endif
  swapcontext(&resumer_, &own_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_of_resumer_, nullptr, nullptr);
#endif
  std::memcpy(exceptions_.data(), exceptions, exceptions_.size());
  std::memcpy(exceptions, exceptions_of_resumer_.data(), exceptions_.size());
  running = nullptr;
}

void Fiber::kill() {
  killed_ = true;
  while (!ended_) resume();
}

void Fiber::yield() {
  Fiber* const self = running;
  self->leave(false);
  if (self->killed_) throw Killed{};
}

void Fiber::leave(bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, stack_of_resumer_, stack_bytes_of_resumer_);
#else
  static_cast<void>(for_good);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(thread_of_resumer_, 0);
#endif
  swapcontext(&own_, &resumer_);
  enter();
}

void Fiber::enter() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &stack_of_resumer_, &stack_bytes_of_resumer_);
#endif
}

void Fiber::run() {
  Fiber* const self = running;
  self->enter();
  try {
    if (!self->killed_) self->body_();
  } catch (const Killed&) {
    // It ends here.
  }
  self->ended_ = true;
  self->leave(true);
}

}  // namespace tessera::ps
