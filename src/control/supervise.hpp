// Internal. How a launcher watches over the ranks of a job, wherever they run: what the user asked for, who failed first, and when the
// others are ended.
#pragma once

#include <poll.h>

#include <csignal>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "control/local_launcher.hpp"
#include "control/worker_process.hpp"

namespace tessera::control {

// The ranks under way: processes of this host, or of others.
class Crew {
 public:
  struct End {
    RankEnd end;
    // Where what is known of the end is more than its status and report: a host that was lost.
    std::optional<Error> error = {};
    std::string host = {};  // empty: this one
  };
  virtual ~Crew() = default;
  // SIGTERM asks all that have not ended to stop, SIGKILL ends them.
  virtual void signal_all(int signal) = 0;
  virtual bool all_ended() const = 0;
  // The ends since the last call.
  virtual std::vector<End> collect() = 0;
  // What has news when it can be read, or written where there is something to write.
  virtual std::vector<pollfd> watched() { return {}; }
};

// What an end that is no good one means: the error that the rank reported, or how it ended.
Error error_of(const Crew::End& ended);

// From now on the signals that a launcher watches (SIGINT, SIGTERM, SIGHUP unless they are ignored, and SIGCHLD) are taken with next()
// alone; the destructor gives them back. Make it before other threads.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Waits until there is a signal or news from one of `others`, at most `patience`. The signal, or none. `others`: with their revents.
  // One that asks to stop a moment after another did is passed over: `timeout` and resource managers signal a process and its group.
  std::optional<int> next(std::vector<pollfd>& others, Seconds patience);

 private:
  sigset_t before_;
  int descriptor_ = -1;
  std::optional<Seconds> asked_ = {};  // when one last asked to stop
};

// Whether it asks to stop, and is not SIGCHLD.
bool asks_to_stop(std::optional<int> signal);

// What run_workers (local_launcher.hpp) promises, for ranks that have been started.
void supervise(Crew& crew, StopSignals& signals, const LaunchOptions& options);

}  // namespace tessera::control
