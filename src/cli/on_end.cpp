#include "cli/on_end.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.hpp"
#include "base/log.hpp"
#include "observe/metrics.hpp"

namespace tessera::cli {
namespace {

// As system(3) does: Ctrl-C at the terminal ends the command and not the one that waits for it.
class IgnoredInterrupts {
 public:
  IgnoredInterrupts() {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGINT, &ignore, &interrupt_);
    ::sigaction(SIGQUIT, &ignore, &quit_);
  }
  ~IgnoredInterrupts() {
    ::sigaction(SIGINT, &interrupt_, nullptr);
    ::sigaction(SIGQUIT, &quit_, nullptr);
  }

 private:
  struct sigaction interrupt_ {};
  struct sigaction quit_ {};
};

// This process's environment, and what the run has come to.
std::vector<std::string> environment_of(const model::JobSpec& job, const std::filesystem::path& run, const std::string& outcome, int code) {
  std::vector<observe::StepMetrics> steps;
  try {
    steps = observe::read_metrics(run / "metrics.jsonl");
  } catch (const Error& problem) {
    log::warning(text("on_end is not told the steps of the run: ", problem.what()));
  }
  std::vector<std::string> variables = {"TESSERA_RUN_NAME=" + job.name,
                                        "TESSERA_RUN_FOLDER=" + std::filesystem::absolute(run).string(),
                                        "TESSERA_RUN_OUTCOME=" + outcome,
                                        text("TESSERA_RUN_EXIT_CODE=", code),
                                        text("TESSERA_RUN_STEPS=", steps.empty() ? 0 : steps.back().step + 1),
                                        "TESSERA_RUN_LAST_LOSS="};
  if (!steps.empty()) variables.back() += text(steps.back().loss);
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (!std::string_view(*variable).starts_with("TESSERA_RUN_")) variables.emplace_back(*variable);
  return variables;
}

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Returns errno when it could not be started. Nothing of it goes to stdout, which may be read as JSON.
int start(const std::vector<std::string>& command, const std::vector<std::string>& environment, pid_t& process) {
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t set;
  sigemptyset(&set);
  ::posix_spawnattr_setsigmask(&attributes, &set);
  for (const int signal : {SIGINT, SIGQUIT, SIGPIPE}) sigaddset(&set, signal);
  ::posix_spawnattr_setsigdefault(&attributes, &set);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int problem =
      ::posix_spawnp(&process, command.front().c_str(), &files, &attributes, pointers_to(command).data(), pointers_to(environment).data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  return problem;
}

void run_on_end(const model::JobSpec& job, const std::filesystem::path& run, const std::string& outcome, int code) {
  if (job.on_end.empty()) return;
  const std::string& program = job.on_end.front();
  const std::vector<std::string> environment = environment_of(job, run, outcome, code);
  const IgnoredInterrupts ignored;
  pid_t process = -1;
  if (const int problem = start(job.on_end, environment, process); problem != 0) {
    log::warning(text("on_end: cannot start ", program, ": ", std::strerror(problem)));
    return;
  }
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {}
  if (WIFSIGNALED(status))
    log::warning(text("on_end: ", program, " was ended by signal ", WTERMSIG(status), " (", ::strsignal(WTERMSIG(status)), ")"));
  else if (WEXITSTATUS(status) != 0)
    log::warning(text("on_end: ", program, " ended with exit code ", WEXITSTATUS(status)));
}

}  // namespace

void with_on_end(const model::JobSpec& job, const std::filesystem::path& run, const std::function<void()>& train) {
  try {
    train();
  } catch (const Error& error) {
    run_on_end(job, run, error.code() == ErrorCode::interrupted ? "stopped" : "failed", exit_code(error.code()));
    throw;
  }
  run_on_end(job, run, "complete", 0);
}

}  // namespace tessera::cli
