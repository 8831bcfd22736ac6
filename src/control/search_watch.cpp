#include "control/search_watch.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/terminal.hpp"

namespace tessera::control {
namespace {

constexpr Seconds kQuiet(1);
constexpr int kRedrawMilliseconds = 200;

sigset_t interrupt() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  return set;
}

// Jobs in the background of a script ignore it, and go on doing so.
bool is_ignored() {
  struct sigaction now {};
  return ::sigaction(SIGINT, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

class SearchWatch::Watcher {
 public:
  explicit Watcher(OnInterrupt on_interrupt)
      : live_(is_live_terminal(STDERR_FILENO)), stops_(on_interrupt == OnInterrupt::stop_search && !is_ignored()) {
    const sigset_t set = interrupt();
    // The threads of the search inherit the mask, so that the signal waits for the descriptor.
    if (stops_) ::pthread_sigmask(SIG_BLOCK, &set, &before_);
    signals_ = stops_ ? ::signalfd(-1, &set, SFD_CLOEXEC) : -1;
    ended_ = ::eventfd(0, EFD_CLOEXEC);
    if (ended_ < 0 || (stops_ && signals_ < 0)) throw_errno("watch", "the search", errno);
    thread_ = std::thread([this] { run(); });
  }
  ~Watcher() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(ended_, &one, sizeof one);
    thread_.join();
    ::close(ended_);
    if (stops_) {
      ::close(signals_);
      ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
  }
  search::Watch& watch() { return watch_; }

 private:
  void run() {
    for (;;) {
      pollfd ready[] = {{ended_, POLLIN, 0}, {signals_, POLLIN, 0}};
      const int count = ::poll(ready, 2, live_ ? kRedrawMilliseconds : -1);
      if (count < 0 && errno != EINTR) break;
      if (count > 0 && ready[0].revents != 0) break;
      if (count > 0 && ready[1].revents != 0) on_interrupt();
      if (live_ && real_clock().now() - begin_ > kQuiet) draw();
    }
    erase();
  }

  void on_interrupt() {
    signalfd_siginfo info{};
    if (::read(signals_, &info, sizeof info) != sizeof info) return;
    if (watch_.stop.exchange(true)) {
      erase();
      const sigset_t set = interrupt();
      ::signal(SIGINT, SIG_DFL);
      ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
      ::raise(SIGINT);
    }
    erase();
    std::fprintf(stderr, "stopping with the best plan so far; Ctrl-C again ends at once\n");
  }

  void draw() {
    std::string line = text("searching: ", watch_.considered.load(), " choices");
    if (const Seconds best = watch_.best; best > Seconds(0)) line += text(", best step ", to_text(best));
    line += text(", ", static_cast<std::int64_t>((real_clock().now() - begin_).value), " s");
    // A line as wide as the terminal would wrap on some of them.
    const int columns = columns_of(STDERR_FILENO);
    const std::size_t most = columns > 0 ? static_cast<std::size_t>(columns - 1) : std::string::npos;
    for (const std::string hint : {"; Ctrl-C ends with the best so far", "; Ctrl-C: the best so far"})
      if (stops_ && !watch_.stop && line.size() + hint.size() <= most) {
        line += hint;
        break;
      }
    line.resize(std::min(line.size(), most));
    std::fprintf(stderr, "\r\033[K%s", line.c_str());
    std::fflush(stderr);
    drawn_ = true;
  }

  void erase() {
    if (drawn_) std::fprintf(stderr, "\r\033[K");
    drawn_ = false;
  }

  const bool live_;
  const bool stops_;
  const Seconds begin_ = real_clock().now();
  search::Watch watch_;
  sigset_t before_{};
  int signals_ = -1;
  int ended_ = -1;
  bool drawn_ = false;  // for the thread alone
  std::thread thread_;
};

SearchWatch::SearchWatch(OnInterrupt on_interrupt) : watcher_(std::make_unique<Watcher>(on_interrupt)) {}
SearchWatch::~SearchWatch() = default;
search::Watch* SearchWatch::watch() { return &watcher_->watch(); }
bool SearchWatch::stopped() { return watcher_->watch().stop; }

}  // namespace tessera::control
