#include "control/worker_process.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/secret.hpp"
#include "control/report.hpp"
#include "control/thread_waits.hpp"

namespace tessera::control {
namespace {

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

Pipe make_pipe(int rank) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("make a pipe for", text("rank ", rank), errno);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {ends[0], ends[1]};
}

void close_if_open(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

[[noreturn]] void become(const WorkerCommand& worker, const std::string& secret, const Pipe& report, const Pipe& output, const Pipe& errors,
                         pid_t launcher) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(1);
  // Its own process group: Ctrl-C reaches the launcher alone, which then tells the workers.
  ::setpgid(0, 0);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  if (output.write_end >= 0) ::dup2(output.write_end, STDOUT_FILENO);
  if (errors.write_end >= 0) ::dup2(errors.write_end, STDERR_FILENO);
  ::fcntl(report.write_end, F_SETFD, 0);
  ::setenv(kSecretVariable, secret.c_str(), 1);
  for (const auto& [name, value] : worker.environment) ::setenv(name.c_str(), value.c_str(), 1);
  spin_briefly();
  ::setenv(kErrorDescriptor, std::to_string(report.write_end).c_str(), 1);
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
  [[maybe_unused]] const ssize_t written = ::write(report.write_end, message.data(), message.size());
  ::_exit(127);
}

// What can be read now; at the end of the file the descriptor is closed.
template <typename Take>
void drain(int& descriptor, const Take& take) {
  std::array<char, 16384> buffer;
  while (descriptor >= 0) {
    const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) {
      close_if_open(descriptor);
      return;
    }
    take(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
  }
}

}  // namespace

WorkerProcesses::~WorkerProcesses() {
  signal_all(SIGKILL);
  for (Running& worker : workers_) {
    if (!worker.ended) ::waitpid(worker.process, nullptr, 0);
    for (int* descriptor : {&worker.error_pipe, &worker.output_pipe, &worker.errors_pipe}) close_if_open(*descriptor);
  }
}

void WorkerProcesses::start(const WorkerCommand& worker, const std::string& secret, Output output) {
  Pipe report = make_pipe(worker.rank);
  Pipe out;
  Pipe errors;
  if (output == Output::piped) {
    out = make_pipe(worker.rank);
    errors = make_pipe(worker.rank);
  }
  const pid_t launcher = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) throw_errno("start", worker.arguments[0], errno);
  if (process == 0) become(worker, secret, report, out, errors, launcher);
  for (Pipe* pipe : {&report, &out, &errors}) close_if_open(pipe->write_end);
  workers_.push_back({worker.rank, process, report.read_end, out.read_end, errors.read_end, false});
}

void WorkerProcesses::signal_all(int signal) {
  for (const Running& worker : workers_)
    if (!worker.ended) ::kill(worker.process, signal);
}

bool WorkerProcesses::all_ended() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Running& worker) { return worker.ended; });
}

std::vector<RankEnd> WorkerProcesses::collect() {
  std::vector<RankEnd> ends;
  for (Running& worker : workers_) {
    RankEnd end{.rank = worker.rank, .report = {}};
    if (worker.ended || ::waitpid(worker.process, &end.status, WNOHANG) != worker.process) continue;
    worker.ended = true;
    read_from(worker);
    drain(worker.error_pipe, [&](std::string_view bytes) { end.report += bytes; });
    ends.push_back(std::move(end));
  }
  return ends;
}

std::vector<int> WorkerProcesses::descriptors() const {
  std::vector<int> found;
  for (const Running& worker : workers_)
    for (const int descriptor : {worker.output_pipe, worker.errors_pipe})
      if (descriptor >= 0) found.push_back(descriptor);
  return found;
}

void WorkerProcesses::read_what_there_is() {
  for (Running& worker : workers_) read_from(worker);
}

void WorkerProcesses::read_from(Running& worker) {
  drain(worker.output_pipe, [&](std::string_view bytes) { reader_(worker.rank, Stream::output, bytes); });
  drain(worker.errors_pipe, [&](std::string_view bytes) { reader_(worker.rank, Stream::errors, bytes); });
}

}  // namespace tessera::control
