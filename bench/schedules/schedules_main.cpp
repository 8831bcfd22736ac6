// One JSON object a line: what compiling, checking and simulating a schedule takes, its bubble and what it holds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "program/program_helper.hpp"
#include "sim/given_times_helper.hpp"

namespace tessera {
namespace {

double milliseconds(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

void print_row(plan::Schedule schedule, int pipeline_size, int micro_batches, int chunks) {
  const int stages = pipeline_size * (plan::is_v_shaped(schedule) ? 2 : schedule == plan::Schedule::interleaved ? chunks : 1);
  const auto model = program::small_model(std::max(1, stages - 2), false);
  const auto plan =
      program::make_plan(model, {.pipeline_size = pipeline_size, .micro_batches = micro_batches, .schedule = schedule, .chunks = chunks});
  std::vector<program::Program> programs;
  const double compiling = milliseconds([&] { programs = program::compile(plan, model); });
  const double checking = milliseconds([&] { program::check(programs); });
  sim::Result result;
  const double chunk = 1.0 * pipeline_size / stages;
  const double simulating = milliseconds([&] {
    result = sim::run(programs, {Seconds(chunk), Seconds(chunk), Seconds(chunk), Seconds(0)});
  });
  std::size_t instructions = 0;
  std::int64_t held = 0;
  for (const auto& program : programs) instructions += program.instructions.size();
  for (const auto& rank : result.ranks) held = std::max(held, rank.peak_memory.value);
  std::printf(
      "{\"schedule\": \"%s\", \"ranks\": %d, \"micro_batches\": %d, \"stages_a_rank\": %d, \"instructions\": %zu, \"compile_ms\": %.3f, "
      "\"check_ms\": %.3f, "
      "\"simulate_ms\": %.3f, \"bubble\": %.9f, \"pipeline_bubble\": %.9f, \"held\": %.4f}\n",
      plan::name_of(schedule), pipeline_size, micro_batches, stages / pipeline_size, instructions, compiling, checking, simulating,
      result.bubble, result.pipeline_bubble, static_cast<double>(held) * chunk);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using tessera::plan::Schedule;
  if (argc != 4) return std::fprintf(stderr, "usage: tessera_bench_schedules RANKS MICRO_BATCHES INTERLEAVED_CHUNKS\n"), 2;
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved, Schedule::zb_h1, Schedule::zb_h2,
                                  Schedule::zb_v, Schedule::dualpipe_v})
    tessera::print_row(schedule, std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]));
}
