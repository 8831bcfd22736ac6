#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>

#include "base/folders.hpp"
#include "cli/command_helper.hpp"

namespace tessera::cli {
namespace {

constexpr auto kPatience = std::chrono::minutes(4);  // under a sanitizer beside other tests, too

[[noreturn]] void become(std::vector<std::string>& arguments, const CommandOptions& options) {
  if (!options.folder.empty() && chdir(options.folder.c_str()) != 0) _exit(126);
  // Tables are as wide as they are, unless a test says otherwise.
  unsetenv("COLUMNS");
  for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  execvp(words[0], words.data());
  _exit(127);
}

// Appends what is there; false at the end of the stream.
bool drain(int descriptor, std::string& into) {
  std::array<char, 8192> buffer;
  const ssize_t count = read(descriptor, buffer.data(), buffer.size());
  if (count > 0) into.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0;
}

}  // namespace

CommandResult run_command(std::vector<std::string> arguments, const CommandOptions& options) {
  std::array<int, 2> out{};
  std::array<int, 2> err{};
  if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipes");
  const pid_t child = fork();
  if (child == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    if (freopen("/dev/null", "r", stdin) == nullptr) _exit(126);
    become(arguments, options);
  }
  close(out[1]);
  close(err[1]);
  CommandResult result;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  std::array<pollfd, 2> streams = {pollfd{out[0], POLLIN, 0}, pollfd{err[0], POLLIN, 0}};
  bool late = false;
  while (streams[0].fd >= 0 || streams[1].fd >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    late = left <= 0 || poll(streams.data(), streams.size(), static_cast<int>(left)) == 0;
    if (late) break;
    if (streams[0].revents != 0 && !drain(out[0], result.out)) streams[0].fd = -1;
    if (streams[1].revents != 0 && !drain(err[0], result.err)) streams[1].fd = -1;
  }
  if (late) {
    kill(child, SIGKILL);
    ADD_FAILURE() << arguments.front() << " did not end within four minutes";
  }
  close(out[0]);
  close(err[0]);
  int status = 0;
  waitpid(child, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

std::string tessera_path() { return std::string(kBinaryFolder) + "/bin/tessera"; }

CommandResult run_tessera(std::vector<std::string> arguments, const CommandOptions& options) {
  arguments.insert(arguments.begin(), tessera_path());
  return run_command(std::move(arguments), options);
}

OnTerminal::OnTerminal(std::vector<std::string> arguments, const CommandOptions& options) {
  const winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  child_ = forkpty(&terminal_, nullptr, nullptr, &size);
  if (child_ == 0) {
    setenv("TERM", "xterm", 1);
    become(arguments, options);
  }
}

OnTerminal::~OnTerminal() {
  if (child_ > 0) {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  close(terminal_);
}

bool OnTerminal::read_some() {
  pollfd ready{terminal_, POLLIN, 0};
  if (poll(&ready, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) > 0) return drain(terminal_, shown_);
  kill(child_, SIGKILL);
  ADD_FAILURE() << "nothing more was shown within four minutes after: " << shown_;
  return false;
}

bool OnTerminal::shows(const std::string& words) {
  for (;;) {
    if (const std::size_t found = shown_.find(words, seen_); found != std::string::npos) {
      seen_ = found + words.size();
      return true;
    }
    if (read_some()) continue;
    ADD_FAILURE() << "'" << words << "' is not in: " << shown_.substr(seen_);
    return false;
  }
}

void OnTerminal::type(const std::string& keys) { EXPECT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size())); }

int OnTerminal::end() {
  while (read_some()) continue;
  int status = 0;
  waitpid(child_, &status, 0);
  child_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::filesystem::path write_program(const TemporaryFolder& folder, const std::string& name, const std::string& script) {
  const std::filesystem::path path = folder.write(name, script);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

}  // namespace tessera::cli
