// Ranks as real processes: each test forks them, so that one can be killed, stopped or leak without harm to the test.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/free_port.hpp"
#include "comm/comm.hpp"

namespace tessera::comm::testing {

// A socket that listens at "127.0.0.1:PORT"; the caller closes it.
int listen_at(const std::string& place);

// What a rank's process ended with: text that the rank's body returned, or how it died.
struct Outcome {
  std::string text;
  bool exited = false;  // by itself; otherwise killed by `signal`
  int signal = 0;
  double seconds = 0;  // from the processes' start to the report
};

// Forks one process per rank, before the caller has threads. The body's return value comes back as text; an Error of
// the body comes back as "error CODE: what". A process that is still alive at the end is killed.
class Ranks {
 public:
  using Body = std::function<std::string(int rank)>;
  Ranks(int count, const Body& body);
  ~Ranks();
  pid_t pid(int rank) const { return children_[static_cast<std::size_t>(rank)].pid; }
  void signal(int rank, int number) const;
  // Waits until the rank has written this line with report(); false after `patience`.
  bool wait_for_line(int rank, const std::string& line, std::chrono::milliseconds patience = std::chrono::seconds(60));
  // Waits until the rank's process has ended; false after `patience`.
  bool wait_for_end(int rank, std::chrono::seconds patience = std::chrono::seconds(60));
  // Waits for all, at most `patience` together; what still runs then is killed.
  std::vector<Outcome> wait(std::chrono::seconds patience = std::chrono::seconds(120));

 private:
  struct Child {
    pid_t pid = 0;
    int pipe = -1;
    std::string output;
    bool open = true;
    Outcome outcome;
  };
  void read_some(std::chrono::milliseconds patience);
  std::vector<Child> children_;
  std::chrono::steady_clock::time_point started_;
};

// Called in a rank: one line to the test.
void report(const std::string& line);

// Options for rank of world at place, with a deadline that suits tests.
Options options(int rank, int world, const std::string& place, double deadline = 60);

}  // namespace tessera::comm::testing
