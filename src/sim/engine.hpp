// Internal: the discrete-event run.
#pragma once

#include <functional>
#include <vector>

#include "program/program.hpp"
#include "sim/costs.hpp"
#include "sim/sim.hpp"

namespace tessera::sim {

// Runs programs against a clock; Result::ranks is by program. `program_of(rank)` is the index of the program that stands for a world rank.
// Throws internal when the programs deadlock.
Result run_programs(const std::vector<program::Program>& programs, const std::function<int(int rank)>& program_of, Costs& costs);

}  // namespace tessera::sim
