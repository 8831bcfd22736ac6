// What ZeRO-2 and ZeRO-3 add to the passes of a program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <functional>
#include <set>

#include "base/expect_error.hpp"
#include "program/program_helper.hpp"

namespace tessera::program {
namespace {

using tessera::testing::error_of;
using ::testing::HasSubstr;

std::vector<Program> any_sharded(bool tied) {
  PlanShape shape{.dp = *rc::gen::element(2, 4),
                  .pipeline_size = *rc::gen::inRange(1, 4),
                  .zero = *rc::gen::inRange(2, 4),
                  .micro_batches = 2 * *rc::gen::inRange(1, 4)};
  shape.schedule = *rc::gen::element(plan::Schedule::gpipe, plan::Schedule::one_f_one_b, plan::Schedule::zb_h1, plan::Schedule::zb_v);
  const auto model = small_model(9, tied);
  plan::Plan plan = make_plan(model, shape);
  if (shape.dp == 4 && *rc::gen::arbitrary<bool>())
    for (plan::Stage& stage : plan.stages) stage.runs.front().strategy.shards = 2;
  plan.delayed_exchange = *rc::gen::arbitrary<bool>();
  check(compile_evaluation(plan, model, 3, 2 * shape.dp));
  return compile(plan, model);
}

RC_GTEST_PROP(ShardPasses, HoldTheParametersOfTwoNeighbouringPassesAtMost, ()) {
  const std::vector<Program> programs = any_sharded(*rc::gen::arbitrary<bool>());
  check(programs);
  for (const Program& program : programs) {
    std::set<int> held;
    std::size_t gathers = 0;
    for (const Instruction& instruction : program.instructions) {
      if (instruction.op == Op::gather_parameters && program.buckets[instruction.bucket].zero == 3) {
        RC_ASSERT(held.insert(instruction.bucket).second);
        ++gathers;
      }
      for (const int bucket : instruction.releases) RC_ASSERT(held.erase(bucket) == 1);
      RC_ASSERT(held.size() <= 3u);  // of a pass and the next: one bucket each, and one that blocks share
    }
    RC_ASSERT(held.empty());
    if (program.buckets.front().zero == 3) RC_ASSERT(gathers > 0);
  }
}

// Of every micro-batch that passes a bucket, all that it adds is reduced.
RC_GTEST_PROP(ShardPasses, ReduceEachBucketOnceForEachMicroBatch, ()) {
  for (const Program& program : any_sharded(false))
    for (std::size_t b = 0; b < program.buckets.size(); ++b) {
      std::set<int> micro_batches;
      int shards = 0;
      for (const Instruction& instruction : program.instructions) {
        if (instruction.bucket != static_cast<int>(b)) continue;
        if (instruction.op == Op::reduce_gradients) RC_ASSERT(micro_batches.insert(instruction.micro_batch).second);
        if (instruction.op == Op::reduce_shards) ++shards;
      }
      RC_ASSERT(static_cast<std::int64_t>(micro_batches.size()) == program.micro_batches);
      RC_ASSERT(shards == (program.buckets[b].across >= 0 ? 1 : 0));
    }
}

// However far another rank is behind, a pass begins when those of one pass at most are being reduced.
RC_GTEST_PROP(ShardPasses, HoldTheGradientsOfTwoPassesAtMost, ()) {
  for (const Program& program : any_sharded(*rc::gen::arbitrary<bool>())) {
    std::vector<std::set<int>> reduced_by;  // by pass, the reductions that no later pass has waited for
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& instruction = program.instructions[i];
      if (instruction.op == Op::reduce_gradients && program.buckets[instruction.bucket].zero >= 2) {
        RC_ASSERT(!reduced_by.empty());
        reduced_by.back().insert(static_cast<int>(i));
      }
      if (instruction.adds_to.empty()) continue;
      for (std::set<int>& reductions : reduced_by)
        for (const int dependency : instruction.after) reductions.erase(dependency);
      std::erase_if(reduced_by, [](const std::set<int>& reductions) { return reductions.empty(); });
      RC_ASSERT(reduced_by.size() <= 1u);
      reduced_by.emplace_back();
    }
  }
}

TEST(ShardPasses, ThatDoNotWaitAreRefused) {
  const auto model = small_model(2, false);
  const plan::Plan plan = make_plan(model, PlanShape{.dp = 2, .zero = 3, .micro_batches = 2});
  const auto without = [&](Op dropped) {
    std::vector<Program> programs = compile(plan, model);
    for (Program& program : programs)
      for (Instruction& instruction : program.instructions)
        if (is_compute(instruction.op) && instruction.op != Op::optimizer_step)
          std::erase_if(instruction.after, [&](int d) { return program.instructions[static_cast<std::size_t>(d)].op == dropped; });
    return std::string(error_of([&] { check(programs); }).what());
  };
  EXPECT_THAT(without(Op::gather_parameters), HasSubstr("does not wait for the parameters of bucket"));
  EXPECT_THAT(without(Op::reduce_gradients), HasSubstr("while it is being reduced"));
}

// Exchanges that go on into the next step, which steps what they bring before it gathers it.
TEST(ShardPasses, OfADelayedExchangeWaitForTheStepBefore) {
  const auto model = small_model(4, false);
  plan::Plan plan = make_plan(model, PlanShape{.dp = 2, .pipeline_size = 2, .zero = 3, .micro_batches = 2});
  plan.delayed_exchange = true;
  const std::vector<Program> programs = compile(plan, model);
  check(programs);
  const auto refusal = [&](const std::function<void(Instruction&)>& change) {
    std::vector<Program> changed = programs;
    for (Program& program : changed)
      for (Instruction& instruction : program.instructions) change(instruction);
    return std::string(error_of([&] { check(changed); }).what());
  };
  const auto steps = [&](int index) { return programs[0].instructions[static_cast<std::size_t>(index)].op == Op::optimizer_step; };
  EXPECT_THAT(refusal([&](Instruction& instruction) {
                if (instruction.op == Op::gather_parameters) std::erase_if(instruction.after, steps);
              }),
              HasSubstr("does not wait for the step of its bucket"));
  EXPECT_THAT(refusal([](Instruction& instruction) { instruction.after_previous.clear(); }), HasSubstr("which exchanges its bucket"));
  // The last micro-batch's reductions are what the next step's optimizer waits for.
  for (const Program& program : programs)
    for (const Instruction& step : program.instructions) {
      if (step.op != Op::optimizer_step) continue;
      EXPECT_TRUE(step.finishes_previous);
      ASSERT_EQ(step.after_previous.size(), 1u);
      const Instruction& last = program.instructions[static_cast<std::size_t>(step.after_previous.front())];
      EXPECT_EQ(last.op, Op::reduce_gradients);
      EXPECT_EQ(last.micro_batch, plan.micro_batches - 1);
    }
}

}  // namespace
}  // namespace tessera::program
