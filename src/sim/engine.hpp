// Internal: the discrete-event run.
#pragma once

#include <functional>
#include <vector>

#include "program/program.hpp"
#include "sim/costs.hpp"
#include "sim/sim.hpp"

namespace tessera::sim {

// Result::ranks is by program. `program_of` says which program stands for a rank.
Result run_programs(const std::vector<program::Program>& programs, const std::function<int(int rank)>& program_of, Costs& costs);

}  // namespace tessera::sim
