#include <map>

#include "program/chrome_trace.hpp"
#include "sim/sim.hpp"

namespace tessera::sim {

std::string to_chrome_trace(const Result& result, const std::vector<program::Program>& programs) {
  program::ChromeTrace trace;
  std::map<int, const program::Program*> program_of;
  for (const program::Program& program : programs) {
    trace.add_rank(program);
    trace.add_step(program, 0, Seconds(0), result.step);
    program_of[program.rank] = &program;
  }
  for (const Span& span : result.spans) {
    const program::Program& program = *program_of.at(span.rank);
    trace.add(program, span.instruction, 0, span.begin, span.end);
    if (span.exposed > Seconds(0)) trace.add_exposed(program, span.instruction, 0, span.end - span.exposed, span.end);
  }
  for (const MemoryPoint& point : result.memory) trace.add_memory(point.rank, point.time, point.bytes);
  return trace.to_json();
}

}  // namespace tessera::sim
