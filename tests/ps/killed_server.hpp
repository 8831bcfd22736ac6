// Servers as processes that are killed, and a client that counts what they have acknowledged.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/free_port.hpp"
#include "ps/client.hpp"
#include "ps/server.hpp"

namespace tessera::ps {

// A server in a process of its own, which may be killed and started again at the same place. The process that starts
// it has one thread, so that the thread sanitizer lets the server start others: no RunningServer beside it.
class KilledServer {
 public:
  KilledServer(std::string at, ServerOptions options) : place(std::move(at)), options_(std::move(options)) { start(); }
  KilledServer() : KilledServer(free_loopback_place(), {}) {}
  ~KilledServer() { kill(); }
  KilledServer(const KilledServer&) = delete;
  KilledServer& operator=(const KilledServer&) = delete;

  void start() {
    const pid_t parent = getpid();
    id_ = fork();
    if (id_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close_range(3, ~0U, 0);  // the test's connections
    try {
      Server server(place, "", options_);
      server.serve({});
    } catch (const std::exception& error) {
      std::cerr << error.what() << "\n";
    }
    _exit(0);
  }
  void kill() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    waitpid(std::exchange(id_, -1), nullptr, 0);
  }
  // Another process does it, whatever this one is at.
  void kill_in(useconds_t microseconds) {
    killer_ = fork();
    if (killer_ != 0) return;
    close_range(3, ~0U, 0);
    usleep(microseconds);
    ::kill(id_, SIGKILL);
    _exit(0);
  }
  // Of one that is to be killed.
  bool has_ended() {
    if (waitpid(id_, nullptr, WNOHANG) != id_) return false;
    id_ = -1;
    waitpid(killer_, nullptr, 0);
    return true;
  }
  const std::string place;

 private:
  ServerOptions options_;
  pid_t id_ = -1, killer_ = -1;
};

inline constexpr int kDimension = 4;
inline constexpr std::size_t kKeys = 20'000;
inline std::vector<Key> all_keys() {
  std::vector<Key> keys(kKeys);
  std::iota(keys.begin(), keys.end(), 1);
  return keys;
}

// Adds 1 to every row in each push; a row says how many were applied.
struct Counting {
  explicit Counting(const std::string& place) : client({place}, "", {.reconnect = Seconds(30)}) {
    table = client.open(
        {.name = "counts", .dimension = kDimension, .optimizer = {.rule = Rule::add}, .initializer = {.kind = InitialValues::zero}});
  }
  void push() {
    client.push(table, keys, ones);
    ++pushes;
  }
  void expect_all() {
    std::vector<float> values(ones.size());
    client.pull(table, keys, values, Absent::zeros);
    EXPECT_THAT(values, testing::Each(static_cast<float>(pushes)));
  }
  Client client;
  Client::TableId table;
  const std::vector<Key> keys = all_keys();
  const std::vector<float> ones = std::vector<float>(kKeys * kDimension, 1.0f);
  int pushes = 0;
};

}  // namespace tessera::ps
