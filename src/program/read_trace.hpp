// Reads traces as chrome_trace.hpp writes them: of steps that ran, and of a step that was simulated.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "program/program.hpp"

namespace tessera::program {

// A stretch of time, counted from the start of the trace.
struct Interval {
  Seconds begin;
  Seconds end;
};

// One instruction of one rank in one step.
struct TracedInstruction {
  Op op = Op::forward;
  std::string label;   // label_of
  std::string blocks;  // "[first, last)"; empty where it has none
  std::string group;   // its name; empty where it has none
  int micro_batch = -1;
  int peer = -1;
  int bucket = -1;
  Bytes bytes{};
  Interval time;
  std::vector<Interval> exchanges = {};  // of a pass or an optimizer step: in which the rank communicates and does not compute
};

// Computing outside of the instructions: "samples", "zero_gradients", "gradient_norm".
struct TracedWork {
  std::string name;
  Interval time;
};

struct TracedRank {
  Interval step;
  std::map<int, TracedInstruction> instructions;  // by index in the rank's program
  std::vector<TracedWork> work;
};
using TracedStep = std::map<int, TracedRank>;  // by rank

// By step, what `json` says; `name` is that of its file. Throws corrupt where it is no such trace, or where an instruction stands outside
// of a rank's step.
std::map<std::int64_t, TracedStep> read_trace(const std::string& json, const std::string& name);

}  // namespace tessera::program
