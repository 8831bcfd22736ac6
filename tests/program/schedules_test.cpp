// Programs of plans that put several stages on a rank or run backward passes in halves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <algorithm>
#include <set>

#include "program/program_helper.hpp"

namespace tessera::program {
namespace {

using plan::Schedule;

const std::vector<Schedule> kAll = {Schedule::one_f_one_b, Schedule::gpipe, Schedule::interleaved, Schedule::zb_h1,
                                    Schedule::zb_h2,       Schedule::zb_v,  Schedule::dualpipe_v};

struct Case {
  model::ModelSpec model;
  plan::Plan plan;
};

Case any_case() {
  PlanShape shape;
  shape.schedule = *rc::gen::elementOf(kAll);
  shape.pipeline_size = *rc::gen::inRange(1, 6);
  shape.chunks = shape.schedule == Schedule::interleaved ? *rc::gen::inRange(1, 4) : 1;
  shape.dp = 1 << *rc::gen::inRange(0, 2);
  shape.tp = 1 << *rc::gen::inRange(0, 2);
  shape.zero = *rc::gen::inRange(0, 2);
  shape.micro_batches = *rc::gen::inRange(1, 14);
  shape.delayed_exchange = *rc::gen::arbitrary<bool>();
  shape.exchanged_early = *rc::gen::element(0.0, 0.5, 1.0);
  const int stages = shape.pipeline_size * (plan::is_v_shaped(shape.schedule) ? 2 : shape.chunks);
  Case out{small_model(*rc::gen::inRange(stages, stages + 4), *rc::gen::arbitrary<bool>()), {}};
  out.plan = make_plan(out.model, shape);
  return out;
}

RC_GTEST_PROP(ScheduledProgram, PassesTheCheckUnderEverySchedule, ()) {
  const Case c = any_case();
  plan::check_schedule(c.plan);
  check(compile(c.plan, c.model));
  check(compile_evaluation(c.plan, c.model, *rc::gen::inRange(1, 9), 2 * c.plan.stages.front().runs.front().strategy.dp));
}

RC_GTEST_PROP(ScheduledProgram, EveryParameterIsSteppedOnceOnEveryRankThatHoldsIt, ()) {
  const Case c = any_case();
  const auto blocks = c.model.blocks();
  for (const Program& program : compile(c.plan, c.model)) {
    std::multiset<std::pair<int, int>> stepped;
    for (const Bucket& bucket : program.buckets)
      for (const BucketEntry& entry : bucket.entries) stepped.insert({entry.block, entry.parameter});
    for (const Chunk& chunk : program.chunks)
      for (int b = chunk.first_block; b < chunk.last_block; ++b)
        for (std::size_t p = 0; p < blocks[b].spec->parameters.size(); ++p) {
          // A tied copy beside its owner has no storage of its own.
          bool shared = false;
          for (const Chunk& other : program.chunks)
            for (int o = other.first_block; o < other.last_block; ++o)
              for (const auto& owner : blocks[o].spec->parameters)
                if (owner.tied_to.empty() && blocks[o].parameter_name(owner) == blocks[b].spec->parameters[p].tied_to) shared = true;
          RC_ASSERT(stepped.count({b, static_cast<int>(p)}) == (shared ? 0u : 1u));
        }
  }
}

// All passes that add to a bucket's gradients have ended before the gradients leave or are stepped.
RC_GTEST_PROP(ScheduledProgram, BucketsAreReducedAfterTheLastGradientThatGoesIn, ()) {
  const Case c = any_case();
  const auto blocks = c.model.blocks();
  for (const Program& program : compile(c.plan, c.model)) {
    const auto contributes = [&](const Bucket& bucket, int block) {
      for (const BucketEntry& entry : bucket.entries) {
        if (entry.block == block) return true;
        const std::string name = blocks[entry.block].parameter_name(blocks[entry.block].spec->parameters[entry.parameter]);
        for (const auto& parameter : blocks[block].spec->parameters)
          if (parameter.tied_to == name) return true;
      }
      return false;
    };
    const int count = static_cast<int>(program.instructions.size());
    for (int i = 0; i < count; ++i) {
      const Instruction& use = program.instructions[i];
      if (use.op != Op::reduce_tied && use.op != Op::reduce_gradients) continue;
      if (use.op == Op::reduce_gradients && program.instructions[use.after.front()].op == Op::reduce_tied) continue;
      int waited = -1;
      for (const int dependency : use.after) waited = std::max(waited, dependency);
      for (int j = 0; j < count; ++j) {
        const Instruction& pass = program.instructions[j];
        if (pass.op != Op::backward && pass.op != Op::backward_weight) continue;
        for (int b = pass.first_block; b < pass.last_block; ++b)
          if (contributes(program.buckets[use.bucket], b)) RC_ASSERT(j <= waited);
      }
    }
  }
}

RC_GTEST_PROP(ScheduledProgram, HoldsWhatItsOrderSays, ()) {
  const Case c = any_case();
  for (const Program& program : compile(c.plan, c.model)) {
    const auto order = plan::order_of(c.plan, program.stage);
    std::vector<plan::ChunkBytes> bytes;
    for (std::size_t i = 0; i < program.chunks.size(); ++i) {
      bytes.push_back({10 + static_cast<std::int64_t>(i), 4});
    }
    std::int64_t held = 0, most = 0;
    for (const Instruction& instruction : program.instructions) {
      const int chunk = program.chunk_of(instruction.first_block);
      if (!is_compute(instruction.op) || chunk < 0 || instruction.first_block != program.chunks[chunk].first_block) continue;
      held += change_of(bytes[chunk], instruction.op);
      most = std::max(most, held);
    }
    RC_ASSERT(most == plan::most_bytes(order, bytes));
  }
}

TEST(ScheduledProgram, HandsOverOnTheSpotWhereTheVTurns) {
  const auto model = small_model(6, false);
  const auto programs = compile(make_plan(model, {.pipeline_size = 4, .micro_batches = 8, .schedule = Schedule::zb_v}), model);
  const Program& turn = programs[3];
  EXPECT_EQ(turn.chunks[0].last_block, turn.chunks[1].first_block);
  for (const Instruction& instruction : turn.instructions) {
    if (instruction.peer >= 0) {
      EXPECT_EQ(instruction.peer, 2);
    }
  }
  // The ends of the model are on the first rank, which then talks to its one neighbour alone.
  for (const Instruction& instruction : programs[0].instructions) {
    if (instruction.peer >= 0) {
      EXPECT_EQ(instruction.peer, 1);
    }
  }
}

TEST(ScheduledProgram, TheWeightHalfHoldsNoGradientUp) {
  const auto model = small_model(6, false);
  const auto program = compile(make_plan(model, {.pipeline_size = 4, .micro_batches = 8, .schedule = Schedule::zb_h1}), model)[2];
  for (const Instruction& instruction : program.instructions) {
    if (instruction.op == Op::send_gradient) {
      EXPECT_EQ(program.instructions[instruction.after.front()].op, Op::backward_input);
    }
  }
}

TEST(ScheduledProgram, RunsTheOrderOfAFile) {
  const auto model = small_model(2, false);
  auto plan = make_plan(model, {.pipeline_size = 2, .micro_batches = 3});
  plan::use_schedule(
      plan::read_schedule(ConfigNode::parse("format: tessera-schedule\nversion: 1\nplacement: plain\nmicro_batches: 3\nranks:\n"
                                            "  - [F0.0, F0.1, F0.2, B0.0, B0.1, W0.0, B0.2, W0.2, W0.1]\n"
                                            "  - [F0.0, B0.0, F0.1, B0.1, F0.2, B0.2]\n",
                                            "mine.yaml")),
      plan);
  const auto programs = compile(plan, model);
  check(programs);
  std::vector<std::string> passes;
  for (const Instruction& instruction : programs[0].instructions)
    if (instruction.first_block == 0 && is_compute(instruction.op))
      passes.push_back(text(name_of(instruction.op), ' ', instruction.micro_batch));
  EXPECT_THAT(passes, testing::ElementsAre("forward 0", "forward 1", "forward 2", "backward_input 0", "backward_input 1",
                                           "backward_weight 0", "backward_input 2", "backward_weight 2", "backward_weight 1"));
}

TEST(ScheduledProgram, AFileWhoseRanksWaitForEachOtherIsRefused) {
  const auto model = small_model(2, false);
  auto plan = make_plan(model, {.pipeline_size = 2, .micro_batches = 2});
  // Each rank's own order is sound; together the second wants micro-batch 1 first.
  plan::use_schedule(
      plan::read_schedule(ConfigNode::parse("format: tessera-schedule\nversion: 1\nplacement: plain\nmicro_batches: 2\nranks:\n"
                                            "  - [F0.0, B0.0, F0.1, B0.1]\n  - [F0.1, B0.1, F0.0, B0.0]\n",
                                            "mine.yaml")),
      plan);
  try {
    check(compile(plan, model));
    FAIL() << "the check passed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("waits for something else"));
  }
}

// Where gradients are exchanged late, a step's losses are still those of parameters that the step before has changed.
RC_GTEST_PROP(DelayedProgram, FinishesTheStepBeforeBucketByBucket, ()) {
  Case c = any_case();
  c.plan.delayed_exchange = true;
  for (const Program& program : compile(c.plan, c.model)) {
    std::set<int> stepped;
    for (const Instruction& instruction : program.instructions) {
      RC_ASSERT(instruction.finishes_previous == (instruction.op == Op::optimizer_step || instruction.op == Op::gather_parameters));
      if (instruction.op == Op::optimizer_step) stepped.insert(instruction.bucket);
      if (instruction.op != Op::forward && instruction.op != Op::backward) continue;
      for (std::size_t b = 0; b < program.buckets.size(); ++b)
        for (const BucketEntry& entry : program.buckets[b].entries)
          if (entry.block >= instruction.first_block && entry.block < instruction.last_block)
            RC_ASSERT(stepped.contains(static_cast<int>(b)));
    }
    RC_ASSERT(stepped.size() == program.buckets.size());
  }
}

TEST(DelayedProgram, BeginsToComputeBeforeAllBucketsAreStepped) {
  const auto model = small_model(6, false);
  const Program program = compile(make_plan(model, {.dp = 2, .micro_batches = 2, .delayed_exchange = true}), model).front();
  ASSERT_GT(program.buckets.size(), 2u);
  std::vector<Op> computed;
  for (const Instruction& instruction : program.instructions)
    if (is_compute(instruction.op)) computed.push_back(instruction.op);
  EXPECT_EQ(computed[0], Op::optimizer_step);
  EXPECT_EQ(computed[1], Op::forward);
  EXPECT_EQ(computed[2], Op::optimizer_step);
}

TEST(DelayedProgram, TwoStepsInOneProgramWaitForEachOther) {
  const auto model = small_model(2, false);
  const auto programs = compile(make_plan(model, {.dp = 2, .zero = 1, .delayed_exchange = true}), model);
  const auto twice = unrolled(programs, 2);
  const std::size_t count = programs[0].instructions.size();
  ASSERT_EQ(twice[0].instructions.size(), 2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    const Instruction& once = programs[0].instructions[i];
    std::vector<int> expected;
    for (const int dependency : once.after) expected.push_back(dependency + static_cast<int>(count));
    expected.insert(expected.end(), once.after_previous.begin(), once.after_previous.end());
    EXPECT_EQ(twice[0].instructions[count + i].after, expected);
  }
}

class BrokenDelay : public testing::Test {
 protected:
  model::ModelSpec model_ = small_model(4, false);
  std::vector<Program> programs_ =
      compile(make_plan(model_, {.dp = 2, .pipeline_size = 2, .zero = 1, .micro_batches = 2, .delayed_exchange = true}), model_);
};

TEST_F(BrokenDelay, AStepThatDoesNotWaitForItsExchangeIsFound) {
  for (Instruction& instruction : programs_[0].instructions)
    if (instruction.op == Op::optimizer_step) instruction.after_previous.clear();
  expect_refused(programs_, "of the step before, which exchanges its bucket");
}

TEST_F(BrokenDelay, AGatherThatDoesNotWaitForItsStepIsFound) {
  for (Instruction& instruction : programs_[0].instructions)
    if (instruction.op == Op::gather_parameters) instruction.after.clear();
  expect_refused(programs_, "does not wait for the step of its bucket");
}

TEST_F(BrokenDelay, AStepThatTheFirstStepWouldMakeIsFound) {
  for (Instruction& instruction : programs_[0].instructions) instruction.finishes_previous = false;
  expect_refused(programs_, "is not marked so");
}

TEST_F(BrokenDelay, AnExchangeThatDoesNotExistIsFound) {
  for (Instruction& instruction : programs_[0].instructions)
    if (instruction.op == Op::optimizer_step) instruction.after_previous.push_back(1000);
  expect_refused(programs_, "of the step before, which does not exist");
}

TEST_F(BrokenDelay, APassThatDoesNotWaitForItsParametersIsFound) {
  for (Instruction& instruction : programs_[0].instructions)
    if (instruction.op == Op::forward)
      std::erase_if(instruction.after, [&](int d) { return programs_[0].instructions[d].op == Op::gather_parameters; });
  expect_refused(programs_, "before the step before has stepped it");
}

class BrokenSchedule : public testing::Test {
 protected:
  Instruction& find(int rank, Op op, int nth) {
    for (Instruction& instruction : programs_[rank].instructions)
      if (instruction.op == op && nth-- == 0) return instruction;
    throw Error(ErrorCode::internal, "no such instruction");
  }
  model::ModelSpec model_ = small_model(6, false);
  std::vector<Program> programs_ = compile(make_plan(model_, {.pipeline_size = 4, .micro_batches = 8, .schedule = Schedule::zb_v}), model_);
};

TEST_F(BrokenSchedule, AWeightHalfTwiceIsFound) {
  find(1, Op::backward_weight, 13).micro_batch = find(1, Op::backward_weight, 12).micro_batch;
  expect_refused(programs_, "ends at block");
}

TEST_F(BrokenSchedule, AWeightHalfBeforeItsInputHalfIsFound) {
  const int last = find(0, Op::backward_input, 15).micro_batch;
  find(0, Op::backward_weight, 0).micro_batch = last;
  expect_refused(programs_, "comes before");
}

TEST_F(BrokenSchedule, APassThatDoesNotWaitForItsInputIsFound) {
  find(1, Op::forward, 0).after.clear();
  expect_refused(programs_, "does not wait for what it reads");
}

TEST_F(BrokenSchedule, AMessageThatDoesNotWaitForItsPassIsFound) {
  find(1, Op::send_gradient, 0).after.clear();
  expect_refused(programs_, "does not wait for the pass that makes it");
}

}  // namespace
}  // namespace tessera::program
