// A function that is left in its midst and gone on with later, on the same thread.
#pragma once

#include <ucontext.h>

#include <array>
#include <cstddef>
#include <functional>

namespace tessera::ps {

// Not thread-safe: a fiber stays on the thread that made it.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  // Precondition: it has ended.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs it until it yields or ends. Not to be called from within a fiber.
  void resume();
  // Ends it where it stands: yield() throws Killed there, so that what it owns is given back.
  void kill();
  bool ended() const { return ended_; }

  // Of the fiber that runs.
  static void yield();
  struct Killed {};

 private:
  // What the C++ runtime keeps of exceptions that are being handled: each fiber has its own, as each thread has.
  using Exceptions = std::array<std::byte, 16>;
  static void run();
  void enter();
  void leave(bool for_good);

  std::function<void()> body_;
  ucontext_t own_ = {}, resumer_ = {};
  std::byte* stack_;
  Exceptions exceptions_ = {}, exceptions_of_resumer_ = {};
  bool ended_ = false, killed_ = false;
  // What the sanitizers have to be told.
  void *fake_stack_ = nullptr, *fake_stack_of_resumer_ = nullptr;
  const void* stack_of_resumer_ = nullptr;
  std::size_t stack_bytes_of_resumer_ = 0;
  void *thread_ = nullptr, *thread_of_resumer_ = nullptr;
};

}  // namespace tessera::ps
