#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "comm/processes.hpp"

namespace tessera::comm::testing {
namespace {

int report_pipe = -1;

void write_all(int fd, const std::string& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (written <= 0) return;
    done += static_cast<std::size_t>(written);
  }
}

}  // namespace

int listen_at(const std::string& place) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(place.substr(place.find(':') + 1))));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(fd, 1) != 0)
    throw Error(ErrorCode::io, "cannot listen at " + place);
  return fd;
}

void report(const std::string& line) { write_all(report_pipe, line + "\n"); }

Options options(int rank, int world, const std::string& place, double deadline) {
  Options result;
  result.rank = rank;
  result.world_size = world;
  result.rendezvous = place;
  result.deadline = Seconds(deadline);
  return result;
}

Ranks::Ranks(int count, const Body& body) : started_(std::chrono::steady_clock::now()) {
  std::fflush(nullptr);
  for (int rank = 0; rank < count; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) throw Error(ErrorCode::io, "no pipe");
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      report_pipe = ends[1];
      std::string result;
      try {
        result = body(rank);
      } catch (const Error& error) {
        result = text("error ", name_of(error.code()), ": ", error.what());
      } catch (const std::exception& error) {
        result = text("exception: ", error.what());
      }
      report("result:" + result);
      std::fflush(nullptr);
      _exit(0);
    }
    ::close(ends[1]);
    children_.push_back({.pid = pid, .pipe = ends[0], .output = {}, .open = true, .outcome = {}});
  }
}

Ranks::~Ranks() {
  for (Child& child : children_) {
    if (child.pid > 0) {
      kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
    if (child.pipe >= 0) ::close(child.pipe);
  }
}

void Ranks::signal(int rank, int number) const { kill(pid(rank), number); }

void Ranks::read_some(std::chrono::milliseconds patience) {
  std::vector<pollfd> waiting;
  for (const Child& child : children_) waiting.push_back({child.open ? child.pipe : -1, POLLIN, 0});
  if (poll(waiting.data(), waiting.size(), static_cast<int>(patience.count())) <= 0) return;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (!(waiting[i].revents & (POLLIN | POLLHUP))) continue;
    Child& child = children_[i];
    char buffer[4096];
    const ssize_t got = ::read(child.pipe, buffer, sizeof buffer);
    if (got > 0) {
      child.output.append(buffer, static_cast<std::size_t>(got));
      continue;
    }
    child.open = false;
    child.outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  }
}

bool Ranks::wait_for_line(int rank, const std::string& line, std::chrono::milliseconds patience) {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  const Child& child = children_[static_cast<std::size_t>(rank)];
  while (("\n" + child.output).find("\n" + line + "\n") == std::string::npos) {
    if (!child.open || std::chrono::steady_clock::now() > give_up) return false;
    read_some(std::min(patience, std::chrono::milliseconds(50)));
  }
  return true;
}

bool Ranks::wait_for_end(int rank, std::chrono::seconds patience) {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  const Child& child = children_[static_cast<std::size_t>(rank)];
  while (child.open && std::chrono::steady_clock::now() < give_up) read_some(std::chrono::milliseconds(50));
  return !child.open;
}

std::vector<Outcome> Ranks::wait(std::chrono::seconds patience) {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  const auto any_open = [this] {
    for (const Child& child : children_) {
      if (child.open) return true;
    }
    return false;
  };
  while (any_open() && std::chrono::steady_clock::now() < give_up) read_some(std::chrono::milliseconds(50));
  std::vector<Outcome> outcomes;
  for (Child& child : children_) {
    if (child.open) kill(child.pid, SIGKILL);
    int status = 0;
    waitpid(child.pid, &status, 0);
    child.pid = 0;
    child.outcome.exited = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    child.outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const std::size_t at = child.output.rfind("result:");
    if (at != std::string::npos) child.outcome.text = child.output.substr(at + 7, child.output.size() - at - 8);
    outcomes.push_back(child.outcome);
  }
  return outcomes;
}

}  // namespace tessera::comm::testing
