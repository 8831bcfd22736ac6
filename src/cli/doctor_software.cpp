#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <sstream>

#include "base/clock.hpp"
#include "base/dynamic_library.hpp"
#include "base/error.hpp"
#include "cli/doctor_checks.hpp"
#include "cluster/cluster.hpp"
#include "control/local_launcher.hpp"

extern char** environ;

namespace tessera::cli {
namespace {

struct Output {
  bool finished = false;
  int exit_status = -1;
  std::string text;
};

// Ends the child when it is still running, and leaves no zombie.
int reap(pid_t child, bool kill_first) {
  if (kill_first) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Output output_of(const std::filesystem::path& program, const char* argument, Seconds deadline) {
  std::array<int, 2> pipe_ends{};
  if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0) return {};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDERR_FILENO);
  std::string name = program.string();
  std::string word = argument;
  std::array<char*, 3> arguments = {name.data(), word.data(), nullptr};
  pid_t child = 0;
  const int failed = posix_spawn(&child, name.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  Output output;
  if (failed == 0) {
    const Seconds end = real_clock().now() + deadline;
    std::array<char, 4096> buffer{};
    for (;;) {
      const double left = (end - real_clock().now()).value;
      pollfd ready{pipe_ends[0], POLLIN, 0};
      if (left <= 0 || poll(&ready, 1, static_cast<int>(left * 1000) + 1) <= 0) break;
      const ssize_t count = read(pipe_ends[0], buffer.data(), buffer.size());
      if (count <= 0) {
        output.finished = true;
        break;
      }
      output.text.append(buffer.data(), static_cast<std::size_t>(count));
    }
    output.exit_status = reap(child, !output.finished);
  }
  close(pipe_ends[0]);
  return output;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

Finding check_accelerators() {
  const std::string name = "accelerators";
  std::string value;
  for (const cluster::ResourceGroup& group : cluster::discover_host().groups) {
    if (group.device.shares_host()) continue;
    value += text(value.empty() ? "" : "; ", group.devices_per_node, " x ", group.device.name, ", ", to_text(group.device.memory));
  }
  if (!value.empty()) return {name, Status::ok, value, ""};
  if (std::string why; DynamicLibrary("libnvidia-ml.so.1", why))
    return {name, Status::absent, "an NVIDIA driver, but no device that it knows", "nvidia-smi shows what the driver sees"};
  return {name, Status::absent, "none", "training runs on the CPU"};
}

Finding check_ucx() {
  std::string why;
  const DynamicLibrary ucp("libucp.so.0", why);
  const char* (*version)() = nullptr;
  if (!ucp || !ucp.find("ucp_get_version_string", version))
    return {"ucx", Status::missing, "libucp is not there", "apt-get install libucx0"};
  return {"ucx", Status::ok, version(), ""};
}

Finding check_worker(const std::filesystem::path& worker, Seconds deadline) {
  const std::string how = "build it with the torch wheel in .venv (./dev build), and keep it beside tessera";
  if (worker.empty()) return {"tessera-worker", Status::missing, "not beside tessera", how};
  const Output output = output_of(worker, "--version", deadline);
  if (!output.finished)
    return {"tessera-worker", Status::missing, text(worker.string(), " did not answer within ", to_text(deadline)), how};
  if (output.exit_status != 0) {
    return {"tessera-worker", Status::missing,
            text(worker.string(), " --version failed (", output.exit_status, "): ", first_line(output.text)), how};
  }
  return {"tessera-worker", Status::ok, text(first_line(output.text), " (", worker.string(), ")"), ""};
}

Finding check_program(const std::string& name, const std::string& program, const std::string& advice) {
  const std::filesystem::path found = find_on_path(program);
  if (found.empty()) return {name, Status::absent, "no " + program + " on PATH", advice};
  return {name, Status::ok, found.string(), ""};
}

std::filesystem::path find_on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path candidate = std::filesystem::path(folder.empty() ? "." : folder) / program;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(candidate, ignored) && access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return {};
}

std::filesystem::path find_worker() {
  try {
    return control::sibling_program("tessera-worker");
  } catch (const Error&) {
    return {};
  }
}

}  // namespace tessera::cli
