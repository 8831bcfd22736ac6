// Figures of a step's timeline, measured or simulated, that can be compared instruction by instruction.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "program/read_trace.hpp"

namespace tessera::program {

using InstructionKey = std::pair<int, int>;  // rank, index in its program

// The transfers of a step's communication: each begins when all ranks that take part have come to it, and a message ends when it has been
// received. A trace of a run has only when each rank handed its part to the transport.
std::map<InstructionKey, Interval> transfers_of(const TracedStep& step);

// The parts of a transfer that lie in a rank's step. What goes on beyond the step's end (a delayed exchange) stands at its beginning, where
// that of the step before went on, of which the trace of a single step says nothing.
std::vector<Interval> within(const Interval& step, const Interval& transfer);

// How a rank spends its step; the four add up to it.
struct RankTime {
  Seconds computing;
  Seconds exposed;                  // communication: it does not compute, and something that it takes part in is being transferred
  Seconds reading;                  // samples
  Seconds idle;                     // the rest
  std::vector<Interval> exposures;  // of `exposed`, in order, disjoint
};
std::map<int, RankTime> times_of(const TracedStep& step, const std::map<InstructionKey, Interval>& transfers);

struct InstructionTime {
  Op op = Op::forward;
  // Of communication, the transfer. Of an optimizer's step, with its share of what the rank does for the gradients outside of instructions
  // (clearing, norm), as a profile counts it.
  Seconds duration;
  Seconds begin;  // from the step's begin
};

struct StepFigures {
  Seconds length;  // from the first rank's begin to the last rank's end
  RankTime mean;   // over the ranks; without exposures
  std::map<int, RankTime> ranks;
  std::map<InstructionKey, InstructionTime> instructions;
};
StepFigures figures_of(const TracedStep& step);
// Medians over at least one step. How ranks spend their time, which must add up, is the mean of the shares, of the median length; without
// exposures.
StepFigures median_of(const std::vector<StepFigures>& steps);

// All instructions of one kind in a step.
struct KindFigures {
  Op op = Op::forward;
  int count = 0;
  Seconds median;  // of one
  Seconds total;   // of all ranks together
};
std::vector<KindFigures> kinds_of(const StepFigures& step);

}  // namespace tessera::program
