// Traces for ui.perfetto.dev and chrome://tracing: a process per rank, a row per stream. The simulator and the trainer both write theirs
// here, so that the same instruction has the same name and the same args in what was predicted and in what ran.
#pragma once

#include <cstdint>
#include <string>

#include "program/program.hpp"

namespace tessera::program {

// "forward m3 of chunk 1", "reduce_gradients bucket 0". The pieces of a backward pass that is cut share one name; their args "blocks" tell
// them apart.
std::string label_of(const Program& program, const Instruction& instruction);

// Times count from the start of the trace. Every event of an instruction has the args "step", "instruction" (its index) and "op", and
// those of "micro_batch", "stage", "blocks", "peer", "bucket", "group" and "bytes" that apply.
class ChromeTrace {
 public:
  // Names the process and its rows. Once for each rank, before its events.
  void add_rank(const Program& program);
  void add(const Program& program, int instruction, std::int64_t step, Seconds begin, Seconds end);
  // A stretch of a pass or an optimizer step in which the rank communicates and does not compute.
  void add_exposed(const Program& program, int instruction, std::int64_t step, Seconds begin, Seconds end);
  // Computing outside of the instructions, such as clearing gradients.
  void add_work(const Program& program, const std::string& name, std::int64_t step, Seconds begin, Seconds end);
  // All of a rank's step.
  void add_step(const Program& program, std::int64_t step, Seconds begin, Seconds end);
  void add_memory(int rank, Seconds time, Bytes bytes);

  // The events of this trace, for append() of another process's trace.
  const std::string& events() const { return events_; }
  void append(const std::string& events);
  // The whole trace as a file has it.
  std::string to_json() const;

 private:
  std::string events_;  // JSON objects, a line each
};

}  // namespace tessera::program
