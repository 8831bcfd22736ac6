#include "control/starter.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include "base/clock.hpp"

namespace tessera::control {
namespace {

constexpr Seconds kLeave(8);
constexpr Seconds kAsked(3);

[[noreturn]] void become(const std::string& program, const std::vector<std::string>& command, int line, int words, pid_t launcher) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(1);
  // Ctrl-C is for the launcher alone, which tells the agents.
  ::setpgid(0, 0);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(line >= 0 ? line : nothing, STDIN_FILENO);
  ::dup2(line >= 0 ? line : words, STDOUT_FILENO);
  ::dup2(words, STDERR_FILENO);
  std::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  std::vector<char*> arguments;
  for (const auto& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  ::_exit(127);
}

}  // namespace

Starter::Starter(const std::vector<std::string>& command, Speaks speaks) {
  const auto program = find_program(command.front());
  if (!program) throw Error(ErrorCode::not_found, "there is no program '" + command.front() + "' on this host");
  int ends[2] = {-1, -1};
  int pair[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("make a pipe for", command.front(), errno);
  words_ = comm::Descriptor(ends[0]);
  const comm::Descriptor words(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  if (speaks == Speaks::line && ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    throw_errno("make a connection to", command.front(), errno);
  const comm::Descriptor theirs(pair[1]);
  if (pair[0] >= 0) line_ = Line(comm::Descriptor(pair[0]), {});
  line_.trust();
  const pid_t launcher = ::getpid();
  process_ = ::fork();
  if (process_ < 0) throw_errno("start", command.front(), errno);
  if (process_ == 0) become(*program, command, theirs.get(), words.get(), launcher);
}

Starter::Starter(Starter&& other) noexcept
    : process_(std::exchange(other.process_, -1)),
      line_(std::move(other.line_)),
      words_(std::move(other.words_)),
      begun_(std::move(other.begun_)),
      last_line_(std::move(other.last_line_)),
      status_(other.status_),
      asked_(other.asked_) {}

Starter::~Starter() {
  if (process_ < 0) return;
  line_.close();
  const auto wait_for = [&](Seconds patience) {
    const Seconds until = real_clock().now() + patience;
    while (!status() && real_clock().now() < until) {
      read([](const std::string&) {});  // it must not wait for a reader
      real_clock().sleep(Seconds(0.01));
    }
    return status().has_value();
  };
  if (!asked_ && wait_for(kLeave)) return;
  ask_to_end();
  if (!wait_for(kAsked)) {
    ::kill(-process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
}

void Starter::ask_to_end() {
  if (!asked_ && !status()) ::kill(-process_, SIGTERM);
  asked_ = true;
}

void Starter::watch(std::vector<pollfd>& watched) const {
  if (words_) watched.push_back({words_.get(), POLLIN, 0});
}

void Starter::read(const std::function<void(const std::string& line)>& hear) {
  constexpr std::size_t kMostOfALine = 16 << 10;
  std::array<char, 4096> buffer;
  const auto say = [&](std::string line) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty()) return;
    last_line_ = line;
    hear(line);
  };
  while (words_) {
    const ssize_t got = ::read(words_.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      words_ = comm::Descriptor();
      begun_ += '\n';
      break;
    }
    begun_.append(buffer.data(), static_cast<std::size_t>(got));
  }
  std::size_t begin = 0;
  for (std::size_t end; (end = begun_.find('\n', begin)) != std::string::npos; begin = end + 1) say(begun_.substr(begin, end - begin));
  begun_.erase(0, begin);
  if (begun_.size() > kMostOfALine) begun_.clear();
}

std::optional<int> Starter::status() {
  int status = 0;
  if (!status_ && ::waitpid(process_, &status, WNOHANG) == process_) status_ = status;
  return status_;
}

std::vector<std::string> words_of(const std::string& command) {
  std::istringstream stream(command);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::optional<std::string> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return ::access(name.c_str(), X_OK) == 0 ? std::optional(name) : std::nullopt;
  const char* folders = std::getenv("PATH");
  std::istringstream stream(folders != nullptr ? folders : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(stream, folder, ':');) {
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return std::nullopt;
}

}  // namespace tessera::control
