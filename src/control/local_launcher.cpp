#include "control/local_launcher.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/clock.hpp"
#include "base/secret.hpp"
#include "control/report.hpp"

namespace tessera::control {
namespace {

struct Running {
  int rank = 0;
  pid_t process = -1;
  int error_pipe = -1;
  bool ended = false;
  int status = 0;
};

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    // What is ignored (by nohup, or for jobs in the background of a script) stays so: blocked, it would still arrive.
    struct sigaction before;
    const bool ignored = ::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
    if (!ignored || signal == SIGCHLD) sigaddset(&set, signal);
  }
  return set;
}

[[noreturn]] void become(const WorkerCommand& worker, const std::string& secret, int error_pipe, pid_t launcher) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(1);
  // Its own process group: Ctrl-C reaches the launcher alone, which then tells the workers.
  ::setpgid(0, 0);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::setenv(kSecretVariable, secret.c_str(), 1);
  for (const auto& [name, value] : worker.environment) ::setenv(name.c_str(), value.c_str(), 1);
  ::setenv(kErrorDescriptor, std::to_string(error_pipe).c_str(), 1);
  if (!worker.processors.empty()) {
    cpu_set_t processors;
    CPU_ZERO(&processors);
    for (int processor : worker.processors) CPU_SET(static_cast<std::size_t>(processor), &processors);
    ::sched_setaffinity(0, sizeof processors, &processors);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  std::vector<char*> arguments;
  for (const auto& argument : worker.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execv(arguments[0], arguments.data());
  const std::string message = to_json(Error(ErrorCode::not_found, text("cannot start ", worker.arguments[0], ": ", std::strerror(errno))));
  [[maybe_unused]] const ssize_t written = ::write(error_pipe, message.data(), message.size());
  ::_exit(127);
}

Running start(const WorkerCommand& worker, const std::string& secret) {
  int ends[2];
  if (::pipe(ends) != 0) throw_errno("make a pipe for", text("rank ", worker.rank), errno);
  ::fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  const pid_t launcher = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) throw_errno("start", worker.arguments[0], errno);
  if (process == 0) become(worker, secret, ends[1], launcher);
  ::close(ends[1]);
  return {worker.rank, process, ends[0], false, 0};
}

std::string drain(int descriptor) {
  std::string out;
  char buffer[4096];
  ::fcntl(descriptor, F_SETFL, O_NONBLOCK);
  for (;;) {
    const ssize_t count = ::read(descriptor, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return out;
    out.append(buffer, static_cast<std::size_t>(count));
  }
}

ErrorCode code_of(const std::string& name) {
  for (ErrorCode code : {ErrorCode::invalid_config, ErrorCode::not_found, ErrorCode::corrupt, ErrorCode::io, ErrorCode::resource_exhausted,
                         ErrorCode::peer_lost, ErrorCode::deadline_exceeded, ErrorCode::interrupted})
    if (name == name_of(code)) return code;
  return ErrorCode::internal;
}

Error error_of(const Running& worker) {
  const std::string report = drain(worker.error_pipe);
  const auto json = nlohmann::json::parse(report, nullptr, false);
  if (!json.is_discarded() && json.contains("error")) {
    const auto& body = json["error"];
    Where where{body.value("file", ""), body.value("line", 0), body.value("column", 0), body.value("rank", worker.rank),
                body.value("block", "")};
    return {code_of(body.value("code", "")), body.value("message", ""), where, body.value("expected", ""), body.value("hint", "")};
  }
  if (WIFSIGNALED(worker.status)) {
    const int signal = WTERMSIG(worker.status);
    const std::string hint = signal == SIGKILL ? "killed from outside, perhaps because the host ran out of memory" : std::string();
    return {
        ErrorCode::peer_lost, text("rank ", worker.rank, " was ended by signal ", signal, " (", ::strsignal(signal), ")"), {}, {}, hint};
  }
  return {ErrorCode::internal, text("rank ", worker.rank, " ended with exit code ", WEXITSTATUS(worker.status), " and no error report")};
}

// The workers under way. The destructor ends what is left, so that nothing outlives a failure.
class Crew {
 public:
  ~Crew() {
    signal_all(SIGKILL);
    for (Running& worker : workers_) {
      if (!worker.ended) ::waitpid(worker.process, &worker.status, 0);
      ::close(worker.error_pipe);
    }
  }
  void add(Running worker) { workers_.push_back(worker); }
  void signal_all(int signal) {
    killing_ = killing_ || signal == SIGKILL;
    for (const Running& worker : workers_)
      if (!worker.ended) ::kill(worker.process, signal);
  }
  bool all_ended() const {
    return std::all_of(workers_.begin(), workers_.end(), [](const Running& worker) { return worker.ended; });
  }
  // Collects those that ended since; remembers the first that failed, of those whose failure says most.
  void reap() {
    for (Running& worker : workers_) {
      if (worker.ended || ::waitpid(worker.process, &worker.status, WNOHANG) != worker.process) continue;
      worker.ended = true;
      if (worker.status == 0) continue;
      Error error = error_of(worker);
      const Cause cause = cause_of(worker, error);
      if (failure_ && cause <= cause_) continue;
      failure_ = std::move(error);
      cause_ = cause;
      ended_by_ = WIFSIGNALED(worker.status) ? WTERMSIG(worker.status) : 0;
    }
  }
  const std::optional<Error>& failure() const { return failure_; }
  // The signal that the worker whose failure this is was ended by, or 0.
  int ended_by() const { return ended_by_; }

 private:
  // Why a worker failed, what explains least first.
  enum class Cause { another_worker, asked_to_stop, its_own };
  Cause cause_of(const Running& worker, const Error& error) const {
    if (WIFSIGNALED(worker.status)) return killing_ && WTERMSIG(worker.status) == SIGKILL ? Cause::another_worker : Cause::its_own;
    if (error.code() == ErrorCode::interrupted) return Cause::asked_to_stop;
    return error.code() == ErrorCode::peer_lost ? Cause::another_worker : Cause::its_own;
  }

  std::vector<Running> workers_;
  std::optional<Error> failure_;
  Cause cause_ = Cause::another_worker;
  int ended_by_ = 0;
  bool killing_ = false;
};

class BlockedSignals {
 public:
  BlockedSignals() {
    const sigset_t set = watched_signals();
    ::sigprocmask(SIG_BLOCK, &set, &before_);
  }
  ~BlockedSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

void run_workers(const std::vector<WorkerCommand>& workers, const LaunchOptions& options) {
  const BlockedSignals blocked;
  const sigset_t watched = watched_signals();
  Crew crew;
  const std::string secret = make_secret();
  for (const WorkerCommand& worker : workers) crew.add(start(worker, secret));
  int stop_requests = 0;
  std::optional<double> kill_at;
  for (;;) {
    crew.reap();
    if (crew.all_ended()) break;
    const double now = real_clock().now().value;
    if (crew.failure() && !kill_at) kill_at = now + options.grace.value;
    if (kill_at && now >= *kill_at) crew.signal_all(SIGKILL);
    const timespec wait{0, 200'000'000};
    const int signal = ::sigtimedwait(&watched, nullptr, &wait);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
      ++stop_requests;
      crew.signal_all(stop_requests == 1 ? SIGTERM : SIGKILL);
      if (stop_requests == 1 && options.on_stop_request) options.on_stop_request();
    }
  }
  const std::string way_on = options.way_on ? options.way_on() : std::string();
  if (stop_requests > 1) throw Error(ErrorCode::interrupted, "ended at once, as asked twice", {}, {}, way_on);
  // A worker that handles no signal yet, or never does, has nothing to save.
  if (stop_requests > 0 && crew.ended_by() == SIGTERM) throw Error(ErrorCode::interrupted, "stopped, as asked; there was nothing to save");
  const auto& failure = crew.failure();
  if (!failure) return;
  if (failure->code() == ErrorCode::interrupted) throw Error(ErrorCode::interrupted, failure->message(), {}, {}, way_on);
  if (crew.ended_by() == 0 || way_on.empty()) throw *failure;
  throw Error(failure->code(), failure->message(), failure->where(), failure->expected(),
              failure->hint().empty() ? way_on : failure->hint() + "; " + way_on);
}

std::filesystem::path sibling_program(const std::string& name) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto path = self.parent_path() / name;
  if (error || !std::filesystem::exists(path))
    throw Error(ErrorCode::not_found, name + " is not beside " + self.string(), {}, {}, "build it with ./dev build");
  return path;
}

}  // namespace tessera::control
