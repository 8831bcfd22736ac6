// Internal: the discrete-event run, and the costs that it asks for: of each instruction, its time and the parts of the cluster that it
// uses.
#pragma once

#include <vector>

#include "program/program.hpp"
#include "sim/sim.hpp"

namespace tessera::sim {

// A transfer's use of a resource, a part of the cluster whose bandwidth transfers share. `load`: how many times it uses the resource. Where
// one rank is simulated for several, that is the number of their equal transfers; it is halved if the transfer takes twice the time that
// its bytes need there.
struct Use {
  int resource = 0;
  double load = 1;
};

// A message or a collective.
struct Transfer {
  double seconds = 0;  // alone on its links
  double slows = 1;    // factor on the time of computing beside it
  double slowed = 1;   // factor on its own time beside computing
  std::vector<Use> uses;
  // Transfers with the same id are parts of one transfer, and their load counts once; -1: none.
  int id = -1;
};

// A pass or an optimizer step: it computes, then communicates.
struct Compute {
  double seconds = 0;    // of computing, undisturbed
  double recompute = 0;  // the part of `seconds` that recomputation takes
  Transfer exposed;      // the communication that computing does not overlap
};

// `program` below: index into the programs that run.
class Costs {
 public:
  virtual ~Costs() = default;
  virtual Compute compute(int program, const program::Instruction& instruction) = 0;
  virtual Transfer message(int program, const program::Instruction& send) = 0;
  virtual Transfer collective(int program, const program::Instruction& instruction) = 0;
  virtual Transfer rows(int program, const program::Instruction& instruction) = 0;  // pulled from or pushed to parameter servers
  virtual program::MemoryBudget memory(int program) = 0;
};

// Runs programs against a clock. `program_of`: by rank, the index of the program that stands for it. If steps wait for the step before, the
// result is what one step adds to several in a row. Throws internal when the programs deadlock.
Result run_programs(const std::vector<program::Program>& programs, const std::vector<int>& program_of, Costs& costs);

}  // namespace tessera::sim
