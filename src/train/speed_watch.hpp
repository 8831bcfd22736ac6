// Who slows a run down: ranks that compute longer than others with the same work, and exchanges that take longer than at the run's
// beginning.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "program/program.hpp"
#include "program/read_trace.hpp"

namespace tessera::train {

// Ranks between which something is exchanged: the sender and the receiver of messages, or the members of a group.
struct Connection {
  std::vector<int> ranks;  // world ranks
  std::string group;       // its name; empty for messages
  auto operator<=>(const Connection&) const = default;
};

// By connection, how long what it exchanges in a step is under way, from when all who take part have come to it; in a group until the last
// of them has done with it, since a slow link of a ring holds up those behind it and not those before. Of exchanges within passes, the
// shortest of what its members say, as they count their waiting for each other. `programs` is by rank.
std::map<Connection, Seconds> exchanges_of(const std::vector<program::Program>& programs, const program::TracedStep& step);

// How long a rank computes in a step, without exchanges, by what it computes ("backward of blocks 2 to 5").
using Computing = std::map<std::string, Seconds>;

// What an instruction that computes is called there, whatever its micro-batch.
std::string work_of(const program::Instruction& instruction);

// Some consecutive steps, which all ranks have made.
struct SpeedWindow {
  std::int64_t steps = 1;
  Seconds step;                             // the mean
  std::vector<Computing> computing;         // by rank; the mean
  std::map<Connection, Seconds> exchanges;  // of the last of the steps
};

// Something has become slow or fast, or is so no longer.
struct SpeedChange {
  bool warns = false;          // it has become slow
  std::string words;           // who, by what factor, in what, and what it costs
  int rank = -1;               // of a rank: which
  double ratio = 1;            // and how long it takes now beside what the plan expects, as far as is known; 1 when that is over
  bool between_hosts = false;  // of an exchange: those who take part stand on several hosts
};

// Not thread-safe.
class SpeedWatch {
 public:
  // `programs` and `hosts` (names) are by rank.
  SpeedWatch(const std::vector<program::Program>& programs, std::vector<std::string> hosts);

  // Names, once, a rank that computes more than 1.25 times as long as the median of the other ranks with the same work in three windows
  // running, and an exchange that takes more than 1.5 times as long as at the beginning (the median of the first five windows) in five;
  // again when that is over. A rank that has no such peers is compared with its own beginning. Likewise a rank that takes less than 0.8 of
  // the time of its own beginning while no other rank has become as much faster. What costs or saves less than 5 % of a step is not named,
  // and no exchange whose delay a slow rank that takes part in it may explain: one of less than twice what that rank costs.
  std::vector<SpeedChange> add(const SpeedWindow& window);

 private:
  // Whether something holds, by one window after the other.
  struct Finding {
    int beyond = 0;  // windows running in which it does
    int within = 0;  // windows running in which it does not
    bool named = false;
    std::int64_t since = 0;  // steps until it was named
  };
  // One rank or one connection.
  struct Subject {
    std::vector<Seconds> first;          // of a connection, the windows of the beginning
    std::vector<Computing> first_works;  // of a rank likewise
    Finding slow{};
    Finding fast{};  // of a rank
    Seconds cost{};  // of a rank, in the last window
  };
  enum class Turn { none, named, over };
  Turn judge(Finding& finding, double ratio, double slow, double well, bool counts, int running) const;
  void judge_fast(int rank, const SpeedWindow& window, std::vector<SpeedChange>& changes);
  double beside_beginning(std::size_t rank, const SpeedWindow& window) const;
  std::string name_of(int rank) const;
  void judge_rank(int rank, const SpeedWindow& window, std::vector<SpeedChange>& changes);
  void judge_exchange(const Connection& connection, Seconds seconds, const SpeedWindow& window, std::vector<SpeedChange>& changes);

  std::vector<std::vector<int>> peers_;  // by rank, the others with the same work
  const std::vector<std::string> hosts_;
  bool one_host_ = true;
  std::vector<Subject> ranks_;
  std::map<Connection, Subject> exchanges_;
  std::int64_t steps_ = 0;
};

}  // namespace tessera::train
