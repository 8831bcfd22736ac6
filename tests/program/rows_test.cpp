// Rows of tables on parameter servers, as instructions of a program.
#include <algorithm>

#include "program/program_helper.hpp"

namespace tessera::program {
namespace {

model::ModelSpec clicks() {
  return model::read_model(
      ConfigNode::parse("{arch: dlrm, dim: 4, dense: 13, tables: 3, lookups: 2, bottom: [8, 4], top: [8, 1]}", "model"));
}

const Instruction* find(const Program& program, Op op) {
  const auto found = std::ranges::find(program.instructions, op, &Instruction::op);
  return found == program.instructions.end() ? nullptr : &*found;
}

int index_of(const Program& program, const Instruction* instruction) { return static_cast<int>(instruction - program.instructions.data()); }

bool reads_tables(const Instruction& pass) { return pass.op == Op::forward && pass.first_block <= 1 && 1 < pass.last_block; }

TEST(Rows, OfAStepArePulledBeforeItsFirstReaderAndPushedOnceTheNormIsKnown) {
  const auto model = clicks();
  const std::vector<Program> programs = compile(make_plan(model, PlanShape{.dp = 2, .pipeline_size = 2, .micro_batches = 3}), model);
  check(programs);
  for (const Program& program : programs) {
    const Instruction* const pull = find(program, Op::pull_rows);
    const Instruction* const push = find(program, Op::push_rows);
    if (program.stage != 0) {
      EXPECT_TRUE(pull == nullptr && push == nullptr);
      continue;
    }
    ASSERT_TRUE(pull != nullptr && push != nullptr);
    const auto reader = std::ranges::find_if(program.instructions, reads_tables);
    EXPECT_THAT(reader->after, ::testing::Contains(index_of(program, pull)));
    EXPECT_THAT(push->after, ::testing::Contains(index_of(program, find(program, Op::reduce_norm))));
    EXPECT_THAT(pull->after_previous, ::testing::ElementsAre(index_of(program, push)));
    EXPECT_TRUE(program.crosses_steps());
    // 3 micro-batches of 2 samples with 2 look-ups in 3 tables: a key, its place and 4 values each.
    EXPECT_EQ(pull->bytes, Bytes(3 * 2 * 2 * 3 * (16 + 16)));
    EXPECT_EQ(awaited(program, index_of(program, pull)), "rows of tables from parameter servers");
  }
}

TEST(Rows, ArePulledAStepAheadWhereThePlanSaysSo) {
  const auto model = clicks();
  plan::Plan plan = make_plan(model, PlanShape{.micro_batches = 2});
  plan.rows_ahead = true;
  const Program program = compile(plan, model).front();
  check({program});
  const int pull = index_of(program, find(program, Op::pull_rows));
  const auto reader = std::ranges::find_if(program.instructions, reads_tables);
  EXPECT_THAT(reader->after, ::testing::Not(::testing::Contains(pull)));
  EXPECT_THAT(reader->after_previous, ::testing::ElementsAre(pull));
}

TEST(Rows, OfAnEvaluationAreNotPushed) {
  const auto model = clicks();
  plan::Plan plan = make_plan(model, PlanShape{.dp = 2, .micro_batches = 2});
  plan.rows_ahead = true;
  const std::vector<Program> programs = compile_evaluation(plan, model, 3, 4);
  check(programs);
  for (const Program& program : programs) {
    EXPECT_EQ(find(program, Op::push_rows), nullptr);
    const auto reader = std::ranges::find_if(program.instructions, reads_tables);
    EXPECT_THAT(reader->after, ::testing::Contains(index_of(program, find(program, Op::pull_rows))));
  }
}

TEST(Rows, ThatNobodyWaitsForAreRefused) {
  const auto model = clicks();
  const Program program = compile(make_plan(model, PlanShape{.micro_batches = 2}), model).front();
  Program read_early = program;
  std::ranges::find_if(read_early.instructions, reads_tables)->after.clear();
  expect_refused({read_early}, "does not wait for the rows of tables that it reads");
  Program pushed_early = program;
  std::ranges::find(pushed_early.instructions, Op::push_rows, &Instruction::op)->after.clear();
  expect_refused({pushed_early}, "does not wait for the last pass that adds to gradients of rows");
}

}  // namespace
}  // namespace tessera::program
