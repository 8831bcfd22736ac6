#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"

namespace tessera::train {

// Other servers that a run was asked to take, and what has come of it.
struct OtherServers {
  std::vector<std::string> places;
  std::int64_t after_step = 0;      // how many steps the run had made
  std::uint64_t rows = 0;           // that crossed, those more than once that were changed meanwhile
  Seconds beside = {}, stood = {};  // copying rows beside steps, and without steps
  std::string refused = {};         // why the run has kept the servers that it had; empty: it has not
};

}  // namespace tessera::train
