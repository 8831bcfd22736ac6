// Internal. A collective as a coroutine: it runs until data is missing and is resumed by the thread that brought it.
#pragma once

#include <coroutine>
#include <cstddef>
#include <exception>
#include <utility>
#include <vector>

namespace tessera::comm {

// Starts suspended; owns its frame, and with it every sub-task. Destroying a suspended task cancels it.
class [[nodiscard]] Task {
 public:
  struct promise_type {
    std::exception_ptr error;
    std::coroutine_handle<> parent;        // resumed at the end
    std::size_t* siblings_left = nullptr;  // when set, only the last sibling resumes the parent

    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    struct AtEnd {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) noexcept {
        promise_type& promise = self.promise();
        if (promise.siblings_left && --*promise.siblings_left > 0) return std::noop_coroutine();
        return promise.parent ? promise.parent : std::noop_coroutine();
      }
      void await_resume() noexcept {}
    };
    AtEnd final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  // Runs to the first suspension. Only for a task that nobody awaits.
  void start() { handle_.resume(); }
  bool done() const { return handle_.done(); }
  // After done(): throws what the task threw.
  void result() const {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
  }

  // co_await task: runs it and continues after it.
  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> parent) noexcept {
    handle_.promise().parent = parent;
    return handle_;
  }
  void await_resume() const { result(); }

 private:
  friend class AllOf;
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

// co_await AllOf(tasks): runs them side by side and continues when all have ended; throws the first one's error.
class AllOf {
 public:
  explicit AllOf(std::vector<Task>& tasks) : tasks_(tasks), left_(tasks.size() + 1) {}
  bool await_ready() const noexcept { return tasks_.empty(); }
  bool await_suspend(std::coroutine_handle<> parent) {
    for (Task& task : tasks_) {
      task.handle_.promise().parent = parent;
      task.handle_.promise().siblings_left = &left_;
    }
    // Our own count keeps the parent asleep until all have been started.
    for (Task& task : tasks_) task.handle_.resume();
    return --left_ > 0;
  }
  void await_resume() const {
    for (const Task& task : tasks_) task.result();
  }

 private:
  std::vector<Task>& tasks_;
  std::size_t left_;
};

}  // namespace tessera::comm
