#include "program/read_trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program/chrome_trace.hpp"
#include "program/program_helper.hpp"

namespace tessera::program {
namespace {

TEST(ReadTrace, ReadsWhatIsWritten) {
  const auto model = small_model(2, false);
  const auto programs = compile(make_plan(model, {.pipeline_size = 2, .tp = 2, .micro_batches = 2}), model);
  ChromeTrace trace;
  for (const Program& program : programs) {
    trace.add_rank(program);
    trace.add_step(program, 7, Seconds(1), Seconds(2));
    for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i) trace.add(program, i, 7, Seconds(1 + 0.001 * i), Seconds(1.5));
    trace.add_exposed(program, 0, 7, Seconds(1.25), Seconds(1.5));
    trace.add_work(program, "samples", 7, Seconds(1), Seconds(1.125));
    trace.add_memory(program.rank, Seconds(1), Bytes(3));
  }
  const auto steps = read_trace(trace.to_json(), "trace.json");
  ASSERT_EQ(steps.size(), 1U);
  const TracedStep& step = steps.at(7);
  ASSERT_EQ(step.size(), programs.size());
  for (const Program& program : programs) {
    const TracedRank& rank = step.at(program.rank);
    EXPECT_EQ(rank.step.end, Seconds(2));
    ASSERT_EQ(rank.instructions.size(), program.instructions.size());
    for (const auto& [index, read] : rank.instructions) {
      const Instruction& instruction = program.instructions[static_cast<std::size_t>(index)];
      EXPECT_EQ(read.op, instruction.op);
      EXPECT_EQ(read.label, label_of(program, instruction));
      EXPECT_EQ(read.micro_batch, instruction.micro_batch);
      EXPECT_EQ(read.peer, instruction.peer);
      EXPECT_EQ(read.bytes, instruction.bytes);
      EXPECT_NEAR(read.time.begin.value, 1 + 0.001 * index, 1e-9);
    }
    ASSERT_EQ(rank.instructions.at(0).exchanges.size(), 1U);
    ASSERT_EQ(rank.work.size(), 1U);
    EXPECT_EQ(rank.work.front().name, "samples");
  }
}

TEST(ReadTrace, RefusesWhatIsNone) {
  const auto refused = [](const std::string& json) -> std::string {
    try {
      read_trace(json, "trace.json");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt);
      EXPECT_EQ(error.where().file, "trace.json");
      return error.what();
    }
    return "read";
  };
  const auto events = [](const std::string& all) { return R"({"traceEvents": [)" + all + "]}"; };
  const std::string step = R"({"ph": "X", "name": "step 1", "pid": 0, "ts": 0, "dur": 5, "args": {"step": 1}})";
  EXPECT_THAT(refused("{"), testing::HasSubstr("the trace cannot be read"));
  EXPECT_THAT(refused("[]"), testing::HasSubstr("the trace cannot be read"));
  EXPECT_THAT(refused(events(
                  R"({"ph": "X", "name": "forward", "pid": 0, "ts": 0, "dur": 1, "args": {"step": 1, "instruction": 0, "op": "leap"}})")),
              testing::HasSubstr("'leap' is no instruction"));
  EXPECT_THAT(refused(events(R"({"ph": "X", "name": "samples", "pid": 3, "ts": 0, "dur": 1, "args": {"step": 1}})")),
              testing::HasSubstr("of rank 3 step 1 is missing as a whole"));
  EXPECT_THAT(refused(events(step + R"(, {"ph": "X", "name": "samples", "pid": 0, "ts": 0, "dur": -1, "args": {"step": 1}})")),
              testing::HasSubstr("the time of 'samples' is none"));
  EXPECT_THAT(
      refused(events(
          step + R"(, {"ph": "X", "name": "exposed_communication", "pid": 0, "ts": 0, "dur": 1, "args": {"step": 1, "instruction": 4}})")),
      testing::HasSubstr("belongs to no instruction"));
  EXPECT_THAT(refused(events(R"({"ph": "X", "name": "step 1", "pid": -1, "ts": 0, "dur": 5, "args": {"step": 1}})")),
              testing::HasSubstr("-1 is the number of no rank or instruction"));
  EXPECT_EQ(refused(events(step)), "read");
}

}  // namespace
}  // namespace tessera::program
