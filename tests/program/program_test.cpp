#include "program/program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>

#include "program/program_helper.hpp"

namespace tessera::program {
namespace {

using plan::order_of;
using plan::Slot;

plan::Plan make_plan(const model::ModelSpec& model, int dp, int pp, int tp, int zero, std::int64_t micro_batches, plan::Schedule schedule) {
  return make_plan(model, PlanShape{dp, pp, tp, zero, micro_batches, schedule, 1});
}

TEST(Schedule, OneForwardOneBackwardHoldsAtMostTheStagesBehind) {
  for (int stages = 1; stages <= 6; ++stages)
    for (int stage = 0; stage < stages; ++stage)
      for (int micro_batches = 1; micro_batches <= 9; ++micro_batches) {
        int held = 0;
        int most = 0;
        for (const Slot& slot : order_of(plan::Schedule::one_f_one_b, stage, stages, micro_batches)) {
          held += slot.forward ? 1 : -1;
          most = std::max(most, held);
        }
        EXPECT_EQ(held, 0);
        EXPECT_EQ(most, std::min(stages - stage, micro_batches));
      }
}

TEST(Schedule, GpipeRunsAllForwardsFirst) {
  const auto order = order_of(plan::Schedule::gpipe, 0, 2, 4);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(order[i].forward);
  for (int i = 4; i < 8; ++i) EXPECT_FALSE(order[i].forward);
}

RC_GTEST_PROP(Program, EveryPlanCompilesToProgramsThatPassTheCheck, ()) {
  const int pp = *rc::gen::inRange(1, 5);
  const auto model = small_model(*rc::gen::inRange(pp, 9), *rc::gen::arbitrary<bool>());
  const auto plan = make_plan(model, 1 << *rc::gen::inRange(0, 3), pp, 1 << *rc::gen::inRange(0, 3), *rc::gen::inRange(0, 2),
                              *rc::gen::inRange(1, 9), *rc::gen::element(plan::Schedule::gpipe, plan::Schedule::one_f_one_b));
  check(compile(plan, model));
  check(compile_evaluation(plan, model, 3, 2 * plan.stages.front().runs.front().strategy.dp));
}

RC_GTEST_PROP(Program, EveryParameterIsSteppedOnceOnEveryRankThatHoldsIt, ()) {
  const int pp = *rc::gen::inRange(1, 4);
  const int tp = 1 << *rc::gen::inRange(0, 3);
  const auto model = small_model(4, *rc::gen::arbitrary<bool>());
  const auto programs = compile(make_plan(model, 2, pp, tp, *rc::gen::inRange(0, 2), 2, plan::Schedule::one_f_one_b), model);
  const auto blocks = model.blocks();
  for (const Program& program : programs) {
    std::multiset<std::pair<int, int>> held;
    for (const Bucket& bucket : program.buckets) {
      std::int64_t end = 0;
      for (const BucketEntry& entry : bucket.entries) {
        RC_ASSERT(entry.offset == end);
        end = entry.offset + entry.count;
        held.insert({entry.block, entry.parameter});
        const auto& spec = blocks[entry.block].spec->parameters[entry.parameter];
        RC_ASSERT(entry.count * (spec.split_dim >= 0 ? tp : 1) == spec.count());
      }
      RC_ASSERT(bucket.count >= end);
    }
    for (int b = program.chunks.front().first_block; b < program.chunks.front().last_block; ++b)
      for (std::size_t p = 0; p < blocks[b].spec->parameters.size(); ++p) {
        // A tied copy in the owner's own stage has no storage of its own.
        const bool shared = !blocks[b].spec->parameters[p].tied_to.empty() && pp == 1;
        RC_ASSERT(held.count({b, static_cast<int>(p)}) == (shared ? 0u : 1u));
      }
  }
}

TEST(Program, ReplicasShareTheStepsSamplesWithoutOverlap) {
  const auto model = small_model(2, false);
  const auto plan = make_plan(model, 4, 1, 1, 0, 3, plan::Schedule::one_f_one_b);
  std::vector<int> owners(plan.global_batch, 0);
  for (const Program& program : compile(plan, model))
    for (std::int64_t m = 0; m < program.micro_batches; ++m)
      for (std::int64_t i = 0; i < program.cuts.front().micro_batch_size; ++i) ++owners[program.first_sample(m, program.cuts.front()) + i];
  EXPECT_THAT(owners, testing::Each(1));
}

TEST(Program, TheFirstReductionStartsBeforeTheBackwardPassEnds) {
  const auto model = small_model(6, false);
  const auto program = compile(make_plan(model, 2, 1, 1, 0, 2, plan::Schedule::one_f_one_b), model).front();
  ASSERT_GT(program.buckets.size(), 1u);
  const auto first = std::find_if(program.instructions.begin(), program.instructions.end(),
                                  [](const Instruction& i) { return i.op == Op::reduce_gradients; });
  const Instruction& waited_for = program.instructions[first->after.front()];
  EXPECT_EQ(waited_for.op, Op::backward);
  EXPECT_GT(waited_for.first_block, 0);
}

class BrokenProgram : public testing::Test {
 protected:
  Instruction& find(int rank, Op op, int nth = 0) {
    for (Instruction& instruction : programs_[rank].instructions)
      if (instruction.op == op && nth-- == 0) return instruction;
    throw Error(ErrorCode::internal, "no such instruction");
  }
  model::ModelSpec model_ = small_model(4, false);
  std::vector<Program> programs_ = compile(make_plan(model_, 1, 2, 1, 0, 4, plan::Schedule::one_f_one_b), model_);
};

TEST_F(BrokenProgram, ALostSendIsFound) {
  std::erase_if(programs_[0].instructions, [](const Instruction& i) { return i.op == Op::reduce_norm || i.op == Op::optimizer_step; });
  auto& instructions = programs_[0].instructions;
  for (std::size_t i = 0; i < instructions.size(); ++i)
    if (instructions[i].op == Op::send_activation) {
      instructions[i].peer = 0;
      break;
    }
  EXPECT_THROW(check(programs_), Error);
}

TEST_F(BrokenProgram, AForgottenMicroBatchIsFound) {
  find(1, Op::backward, 2).op = Op::forward;
  EXPECT_THROW(check(programs_), Error);
}

TEST_F(BrokenProgram, ASwappedMessageIsNamed) {
  std::swap(find(0, Op::send_activation, 0).micro_batch, find(0, Op::send_activation, 1).micro_batch);
  expect_refused(programs_, "rank 0 instruction");
}

TEST_F(BrokenProgram, ADependencyOnTheFutureIsNamed) {
  programs_[0].instructions.front().after.push_back(5);
  expect_refused(programs_, "does not come before it");
}

TEST_F(BrokenProgram, ACircleOfWaitsIsADeadlock) {
  // Rank 0 now waits for a gradient before it sends the activation that the gradient depends on.
  auto& instructions = programs_[0].instructions;
  const auto receive =
      std::find_if(instructions.begin(), instructions.end(), [](const Instruction& i) { return i.op == Op::receive_gradient; });
  const auto send = std::find_if(instructions.begin(), instructions.end(),
                                 [](const Instruction& i) { return i.op == Op::send_activation && i.micro_batch == 1; });
  ASSERT_LT(send, receive);
  std::swap(*send, *receive);
  // Everything that came to depend on a later index is dropped; the circle is through the other rank.
  for (std::size_t i = 0; i < instructions.size(); ++i)
    std::erase_if(instructions[i].after, [&](int d) { return d >= static_cast<int>(i); });
  for (auto& instruction : instructions)
    if (instruction.op == Op::forward && instruction.micro_batch == 1)
      instruction.after.push_back(static_cast<int>(&*send - instructions.data()));
  EXPECT_THROW(check(programs_), Error);
}

TEST(Program, SaysWhatARankWaitsFor) {
  Program program;
  program.rank = 1;
  program.groups = {{"dp", {0, 1}}, {"all", {0, 1, 4}}};
  const auto said = [&](Instruction instruction) {
    program.instructions = {std::move(instruction)};
    return awaited(program, 0);
  };
  EXPECT_EQ(said({.op = Op::receive_activation, .micro_batch = 3, .peer = 2, .after = {}}), "activations of micro-batch 3 from rank 2");
  EXPECT_EQ(said({.op = Op::send_gradient, .micro_batch = 0, .peer = 0, .after = {}}),
            "gradients of activations of micro-batch 0 to be taken by rank 0");
  EXPECT_EQ(said({.op = Op::reduce_gradients, .bucket = 2, .group = 0, .after = {}}), "the sum of gradients of bucket 2 with rank 0");
  EXPECT_EQ(said({.op = Op::gather_parameters, .bucket = 0, .group = 1, .after = {}}), "parameters of bucket 0 with ranks 0, 4");
  EXPECT_EQ(said({.op = Op::reduce_norm, .group = 1, .after = {}}), "the norm of all gradients with ranks 0, 4");
  EXPECT_EQ(place(program, 0), "reduce_norm");
}

// Each degree has groups of its own, also where the same ranks would meet: both may reduce at once.
TEST(Program, ExpertsOfDifferentDegreesReduceInGroupsOfTheirOwn) {
  const model::ModelSpec model = model::read_model(ConfigNode::parse(
      "{arch: mixtral, hidden: 64, layers: 6, heads: 4, ffn: 128, experts: 8, experts_per_token: 2, seq: 16, vocab: 256}", "model"));
  plan::Plan plan = make_plan(model, 8, 1, 2, 0, 1, plan::Schedule::one_f_one_b);
  std::vector<plan::StrategyRun>& runs = plan.stages.front().runs;
  const plan::StrategyRun whole = runs.front();
  runs.clear();
  for (int b = 0; b < model.block_count(); ++b) {
    runs.push_back({b, b + 1, whole.strategy});
    if (b > 0 && b + 1 < model.block_count()) runs.back().strategy.ep = std::array{1, 2, 4}[static_cast<std::size_t>(b) % 3];
  }
  const auto programs = compile(plan, model);
  check(programs);
  for (const Program& program : programs) {
    std::set<std::string> names;
    for (const CommGroup& group : program.groups) EXPECT_TRUE(names.insert(group.name).second) << group.name;
  }
}

}  // namespace
}  // namespace tessera::program
