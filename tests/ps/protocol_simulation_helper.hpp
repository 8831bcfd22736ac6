// Workers that train on pairs of parameter servers while connections, servers and hosts fail, as a function of a seed; and what must hold
// of what they see and of what the servers hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ps/planted_bugs.hpp"

namespace tessera::ps::simulation {

struct Outcome {
  std::optional<std::string> failure;  // what does not hold, and when
  std::uint64_t events = 0;
  std::uint64_t trace = 0;  // of all messages: equal for equal runs
  double seconds = 0;       // of the simulated clock
  int crashes_of_leaders = 0, crashes_of_backups = 0, lost_connections = 0, pauses = 0, partitions = 0, comparisons = 0, pulls = 0;
};
Outcome simulate(std::uint64_t seed, Bug bug = Bug::none);

}  // namespace tessera::ps::simulation
