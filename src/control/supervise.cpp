#include "control/supervise.hpp"

#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/clock.hpp"

namespace tessera::control {
namespace {

ErrorCode code_of(const std::string& name) {
  for (ErrorCode code : {ErrorCode::invalid_config, ErrorCode::not_found, ErrorCode::corrupt, ErrorCode::io, ErrorCode::resource_exhausted,
                         ErrorCode::peer_lost, ErrorCode::deadline_exceeded, ErrorCode::interrupted})
    if (name == name_of(code)) return code;
  return ErrorCode::internal;
}

// "rank 3", or "rank 3 on node-b".
std::string named(const Crew::End& ended) { return text("rank ", ended.end.rank, ended.host.empty() ? "" : " on " + ended.host); }

std::string joined(const std::string& first, const std::string& second) {
  return first.empty() || second.empty() ? first + second : first + "; " + second;
}

}  // namespace

Error error_of(const Crew::End& ended) {
  if (ended.error) return *ended.error;
  const auto json = nlohmann::json::parse(ended.end.report, nullptr, false);
  if (!json.is_discarded() && json.contains("error")) {
    const auto& body = json["error"];
    Where where{body.value("file", ""), body.value("line", 0), body.value("column", 0), body.value("rank", ended.end.rank),
                body.value("block", "")};
    const ErrorCode code = code_of(body.value("code", ""));
    // A path means something on the host that has it, or lacks it.
    const std::string here = ended.host.empty() || code == ErrorCode::interrupted ? "" : text("this is what ", named(ended), " found");
    return {code, body.value("message", ""), where, body.value("expected", ""), joined(body.value("hint", ""), here)};
  }
  if (WIFSIGNALED(ended.end.status)) {
    const int signal = WTERMSIG(ended.end.status);
    const std::string hint = signal == SIGKILL ? "killed from outside, perhaps because the host ran out of memory" : std::string();
    return {ErrorCode::peer_lost, text(named(ended), " was ended by signal ", signal, " (", ::strsignal(signal), ")"), {}, {}, hint};
  }
  return {ErrorCode::internal, text(named(ended), " ended with exit code ", WEXITSTATUS(ended.end.status), " and no error report")};
}

namespace {

// The failure that says most, the first of those that say as much.
class Verdict {
 public:
  void hear(const Crew::End& ended, bool killing) {
    if (ended.end.status == 0 && !ended.error) return;
    Error error = error_of(ended);
    const Cause cause = cause_of(ended, error, killing);
    if (failure_ && cause <= cause_) return;
    failure_ = std::move(error);
    cause_ = cause;
    ended_by_ = WIFSIGNALED(ended.end.status) ? WTERMSIG(ended.end.status) : 0;
  }
  const std::optional<Error>& failure() const { return failure_; }
  // The signal that the worker whose failure this is was ended by, or 0.
  int ended_by() const { return ended_by_; }

 private:
  // Why a worker failed, what explains least first.
  enum class Cause { another_worker, asked_to_stop, its_own };
  static Cause cause_of(const Crew::End& ended, const Error& error, bool killing) {
    if (ended.error) return killing ? Cause::another_worker : Cause::its_own;
    if (WIFSIGNALED(ended.end.status)) return killing && WTERMSIG(ended.end.status) == SIGKILL ? Cause::another_worker : Cause::its_own;
    if (error.code() == ErrorCode::interrupted) return Cause::asked_to_stop;
    return error.code() == ErrorCode::peer_lost ? Cause::another_worker : Cause::its_own;
  }

  std::optional<Error> failure_;
  Cause cause_ = Cause::another_worker;
  int ended_by_ = 0;
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

constexpr Seconds kOneRequest{0.25};  // nobody presses Ctrl-C twice in less

}  // namespace

StopSignals::StopSignals() {
  const sigset_t watched = watched_signals();
  ::sigprocmask(SIG_BLOCK, &watched, &before_);
  descriptor_ = ::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) throw_errno("watch", "signals", errno);
}

StopSignals::~StopSignals() {
  ::close(descriptor_);
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> StopSignals::next(std::vector<pollfd>& others, Seconds patience) {
  others.push_back({descriptor_, POLLIN, 0});
  ::poll(others.data(), others.size(), static_cast<int>(patience.value * 1000));
  others.pop_back();
  signalfd_siginfo news{};
  if (::read(descriptor_, &news, sizeof news) != static_cast<ssize_t>(sizeof news)) return std::nullopt;
  const auto signal = static_cast<int>(news.ssi_signo);
  if (!asks_to_stop(signal)) return signal;
  const Seconds now = real_clock().now();
  if (asked_ && now - *asked_ < kOneRequest) return std::nullopt;
  asked_ = now;
  return signal;
}

bool asks_to_stop(std::optional<int> signal) { return signal && *signal != SIGCHLD; }

void supervise(Crew& crew, StopSignals& signals, const LaunchOptions& options) {
  Verdict verdict;
  int stop_requests = 0;
  bool killing = false;
  std::optional<double> kill_at;
  const auto kill_all = [&] {
    killing = true;
    crew.signal_all(SIGKILL);
  };
  for (;;) {
    for (const Crew::End& ended : crew.collect()) verdict.hear(ended, killing);
    if (crew.all_ended()) break;
    const double now = real_clock().now().value;
    if (verdict.failure() && !kill_at) kill_at = now + options.grace.value;
    if (kill_at && now >= *kill_at) kill_all();
    std::vector<pollfd> watched = crew.watched();
    if (!asks_to_stop(signals.next(watched, Seconds(0.2)))) continue;
    if (++stop_requests > 1)
      kill_all();
    else
      crew.signal_all(SIGTERM);
    if (stop_requests == 1 && options.on_stop_request) options.on_stop_request();
  }
  const std::string way_on = options.way_on ? options.way_on() : std::string();
  if (stop_requests > 1) throw Error(ErrorCode::interrupted, "ended at once, as asked twice", {}, {}, way_on);
  // A worker that handles no signal yet, or never does, has nothing to save.
  if (stop_requests > 0 && verdict.ended_by() == SIGTERM)
    throw Error(ErrorCode::interrupted, "stopped, as asked; there was nothing to save");
  const auto& failure = verdict.failure();
  if (!failure) return;
  if (failure->code() == ErrorCode::interrupted) throw Error(ErrorCode::interrupted, failure->message(), {}, {}, way_on);
  const bool own_words = verdict.ended_by() == 0 && failure->code() != ErrorCode::peer_lost;
  if (own_words || way_on.empty()) throw *failure;
  throw Error(failure->code(), failure->message(), failure->where(), failure->expected(), joined(failure->hint(), way_on));
}

}  // namespace tessera::control
