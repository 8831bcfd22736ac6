// Internal: the discrete-event run, and what it asks: what each instruction costs and which parts of the cluster it uses.
#pragma once

#include <vector>

#include "program/program.hpp"
#include "sim/sim.hpp"

namespace tessera::sim {

// A transfer's use of a part of the cluster whose bandwidth transfers share. Where one rank is simulated for several, `load` of their equal
// transfers use the resource at once; half of one uses it where the transfer takes twice the time that its bytes need there.
struct Use {
  int resource = 0;
  double load = 1;
};

// A message or a collective.
struct Transfer {
  double seconds = 0;  // alone on its links
  double slows = 1;    // computing beside it takes this many times as long
  double slowed = 1;   // it takes this many times as long beside computing
  std::vector<Use> uses;
  // Transfers of the same id are parts of one, whose load counts once for all of them; -1: of none.
  int id = -1;
};

// A pass or an optimizer step: it computes, then communicates.
struct Compute {
  double seconds = 0;    // of computing, undisturbed
  double recompute = 0;  // of these, the forward pass that a backward pass repeats
  Transfer exposed;      // the communication that computing does not overlap
};

// `program` below is an index into the programs that run.
class Costs {
 public:
  virtual ~Costs() = default;
  virtual Compute compute(int program, const program::Instruction& instruction) = 0;
  virtual Transfer message(int program, const program::Instruction& send) = 0;
  virtual Transfer collective(int program, const program::Instruction& instruction) = 0;
  virtual Transfer rows(int program, const program::Instruction& instruction) = 0;  // pulled from or pushed to parameter servers
  virtual program::MemoryBudget memory(int program) = 0;
};

// Runs programs against a clock. `program_of`: by rank, index of the program that stands for it. Where one step waits for the one before,
// the result is what a step adds to several in a row. Throws internal when the programs deadlock.
Result run_programs(const std::vector<program::Program>& programs, const std::vector<int>& program_of, Costs& costs);

}  // namespace tessera::sim
