// Programs of plans whose stages have widths of their own, and whose blocks are cut in several ways.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <set>

#include "plan/any_strategy.hpp"
#include "program/program_helper.hpp"

namespace tessera::program {
namespace {

using plan::any_strategy;
using plan::Schedule;
using plan::Strategy;

struct Case {
  model::ModelSpec model;
  plan::Plan plan;
};

// Shares of a micro-batch of 24 samples with which the stage's strategies divide, if there are any.
std::vector<plan::Share> any_shares(const plan::Stage& stage) {
  std::vector<std::vector<plan::Share>> all;
  for (int first = 1; first < stage.width(); ++first)
    for (std::int64_t samples = 1; samples < 24; ++samples) {
      const std::vector<plan::Share> shares = {{first, samples}, {stage.width() - first, 24 - samples}};
      const bool divide = std::all_of(shares.begin(), shares.end(), [&](const plan::Share& share) {
        return std::all_of(stage.runs.begin(), stage.runs.end(), [&](const plan::StrategyRun& run) {
          const int replica = run.strategy.cp * run.strategy.tp;
          return share.ranks % replica == 0 && share.samples % (share.ranks / replica) == 0;
        });
      });
      if (divide) all.push_back(shares);
    }
  return all.empty() ? std::vector<plan::Share>{} : *rc::gen::elementOf(all);
}

Case any_case() {
  const Schedule schedule = *rc::gen::element(Schedule::one_f_one_b, Schedule::gpipe, Schedule::interleaved, Schedule::zb_h1,
                                              Schedule::zb_h2, Schedule::zb_v, Schedule::dualpipe_v);
  const int pipeline_size = *rc::gen::inRange(1, 5);
  const int chunks = plan::is_v_shaped(schedule) ? 2 : schedule == Schedule::interleaved ? *rc::gen::inRange(1, 4) : 1;
  const int stages = pipeline_size * chunks;
  const int micro_batches = *rc::gen::inRange(1, 8);
  Case out{small_model(*rc::gen::inRange(2 * stages, 2 * stages + 4), *rc::gen::arbitrary<bool>()), {}};
  out.plan = make_plan(out.model, {.pipeline_size = pipeline_size, .micro_batches = micro_batches, .schedule = schedule, .chunks = chunks});
  out.plan.global_batch = 24 * micro_batches;
  out.plan.ranks.clear();
  for (int pipeline_rank = 0; pipeline_rank < pipeline_size; ++pipeline_rank) {
    const int width = *rc::gen::element(1, 2, 3, 4, 6, 8);
    std::vector<int> ranks;
    for (int i = 0; i < width; ++i) ranks.push_back(out.plan.world_size() + i);
    out.plan.ranks.resize(out.plan.ranks.size() + ranks.size());
    for (int c = 0; c < chunks; ++c) {
      plan::Stage& stage = out.plan.stages[plan::stage_at(schedule, pipeline_rank, c, pipeline_size)];
      stage.ranks = ranks;
      const int first = stage.first_block();
      const int last = stage.last_block();
      const int cut = *rc::gen::inRange(first + 1, last);
      stage.runs = {{first, cut, any_strategy(width)}, {cut, last, any_strategy(width)}};
      for (plan::StrategyRun& run : stage.runs) run.strategy.sequence_parallel = run.strategy.tp > 1 && *rc::gen::arbitrary<bool>();
      if (chunks == 1 && *rc::gen::arbitrary<bool>()) stage.shares = any_shares(stage);
    }
  }
  return out;
}

std::vector<int> place_of_ranks(const plan::Plan& plan) {
  std::vector<int> out(plan.world_size());
  for (int pipeline_rank = 0; pipeline_rank < plan::pipeline_of(plan).size; ++pipeline_rank)
    for (const int rank : plan.stages[pipeline_rank].ranks) out[rank] = pipeline_rank;
  return out;
}

RC_GTEST_PROP(UnequalProgram, PassesTheCheck, ()) {
  const Case c = any_case();
  RC_LOG() << plan::to_json(c.plan);
  plan::check_schedule(c.plan);
  check(compile(c.plan, c.model));
  check(compile_evaluation(c.plan, c.model, *rc::gen::inRange(1, 6), 24));
}

RC_GTEST_PROP(UnequalProgram, FoldedPassesTheCheck, ()) {
  const Case c = any_case();
  std::vector<int> ranks;
  for (int pipeline_rank = 0; pipeline_rank < plan::pipeline_of(c.plan).size; ++pipeline_rank)
    ranks.push_back(c.plan.stages[pipeline_rank].ranks.front());
  check(compile_folded(c.plan, c.model, ranks), place_of_ranks(c.plan));
}

// Over all ranks the messages of a micro-batch between two stages carry the whole boundary, where the two are cut differently.
RC_GTEST_PROP(UnequalProgram, PassesTheWholeMicroBatchOn, ()) {
  const Case c = any_case();
  const auto programs = compile(c.plan, c.model);
  for (std::size_t s = 0; s + 1 < c.plan.stages.size(); ++s) {
    const plan::Stage& stage = c.plan.stages[s];
    const plan::Stage& next = c.plan.stages[s + 1];
    const Strategy& before = stage.runs.back().strategy;
    const Strategy& after = next.runs.front().strategy;
    if (stage.ranks == next.ranks ||
        (before.same_layout(after) && before.sequence_parallel == after.sequence_parallel && stage.shares == next.shares))
      continue;
    Bytes forward;
    Bytes backward;
    for (const Program& program : programs)
      for (const Instruction& instruction : program.instructions) {
        if (instruction.micro_batch != 0 || instruction.first_block != next.first_block()) continue;
        if (instruction.op == Op::send_activation) forward += instruction.bytes;
        if (instruction.op == Op::send_gradient) backward += instruction.bytes;
      }
    const Bytes whole(c.plan.samples() * 16 * 64 * 4);
    RC_ASSERT(forward == whole && backward == whole);
  }
}

RC_GTEST_PROP(UnequalProgram, StepsEveryParameterOnceInBucketsThatAreCutAlike, ()) {
  const Case c = any_case();
  const auto blocks = c.model.blocks();
  for (const Program& program : compile(c.plan, c.model)) {
    std::multiset<std::string> stepped;
    for (const Bucket& bucket : program.buckets) {
      const auto strategy_of = [&](const BucketEntry& entry) {
        return c.plan.stages[program.chunks[program.chunk_of(entry.block)].stage].strategy_of(entry.block);
      };
      const Strategy first = strategy_of(bucket.entries.front());
      RC_ASSERT((bucket.group >= 0) == (first.copies() > 1));
      if (bucket.group >= 0) {
        const std::size_t across = bucket.across < 0 ? 1 : program.groups[bucket.across].ranks.size();
        RC_ASSERT(static_cast<int>(program.groups[bucket.group].ranks.size() * across) == first.copies());
      }
      RC_ASSERT(bucket.shards == (first.copies() > 1 ? first.sharded_over() : 1));
      RC_ASSERT(bucket.count % bucket.shards == 0);
      for (const BucketEntry& entry : bucket.entries) {
        RC_ASSERT(strategy_of(entry).same_layout(first) && strategy_of(entry).zero == first.zero);
        const auto& spec = blocks[entry.block].spec->parameters[entry.parameter];
        RC_ASSERT(entry.count * (spec.split_dim >= 0 ? first.tp : 1) == spec.count());
        stepped.insert(spec.tied_to.empty() ? blocks[entry.block].parameter_name(spec) : spec.tied_to);
      }
    }
    std::set<std::string> held;
    for (const Chunk& chunk : program.chunks)
      for (int b = chunk.first_block; b < chunk.last_block; ++b)
        for (const auto& spec : blocks[b].spec->parameters)
          held.insert(spec.tied_to.empty() ? blocks[b].parameter_name(spec) : spec.tied_to);
    RC_ASSERT(stepped == std::multiset<std::string>(held.begin(), held.end()));
  }
}

RC_GTEST_PROP(UnequalProgram, ReplicasShareTheSamplesOfAMicroBatch, ()) {
  const Case c = any_case();
  const auto programs = compile(c.plan, c.model);
  for (const plan::Stage& stage : c.plan.stages) {
    std::int64_t next = 0;
    for (const int rank : stage.ranks) {
      const Program& program = programs[rank];
      const Cut& cut = program.cuts.front();
      if (program.stage != static_cast<int>(&stage - c.plan.stages.data()) || cut.tp_index > 0 || stage.runs.front().strategy.cp > 1)
        continue;
      RC_ASSERT(cut.samples_before == next);
      RC_ASSERT(program.first_sample(1, cut) - program.first_sample(0, cut) == c.plan.samples());
      next += cut.micro_batch_size;
    }
    RC_ASSERT(next == 0 || next == c.plan.samples());
  }
}

// Stages of these widths, data-parallel alone, of two micro-batches of 24 samples.
Case of_widths(const std::vector<int>& widths) {
  Case out{small_model(2 * static_cast<int>(widths.size()), false), {}};
  out.plan = make_plan(out.model, {.pipeline_size = static_cast<int>(widths.size()), .micro_batches = 2});
  out.plan.global_batch = 48;
  out.plan.ranks.clear();
  for (std::size_t s = 0; s < widths.size(); ++s) {
    plan::Stage& stage = out.plan.stages[s];
    stage.ranks.clear();
    for (int i = 0; i < widths[s]; ++i) stage.ranks.push_back(out.plan.world_size() + i);
    out.plan.ranks.resize(out.plan.ranks.size() + stage.ranks.size());
    stage.runs.front().strategy.dp = widths[s];
  }
  return out;
}

// To whom a rank sends the activations of its first micro-batch, and how much.
std::vector<std::pair<int, std::int64_t>> sent(const Program& program) {
  std::vector<std::pair<int, std::int64_t>> out;
  for (const Instruction& instruction : program.instructions)
    if (instruction.op == Op::send_activation && instruction.micro_batch == 0) out.emplace_back(instruction.peer, instruction.bytes.value);
  return out;
}

constexpr std::int64_t kSample = 16 * 64 * 4;  // bytes of a sample between two blocks

TEST(UnequalProgram, WidthsThatDivideEachOtherSendWholeParts) {
  const Case c = of_widths({4, 2, 8});
  const auto programs = compile(c.plan, c.model);
  EXPECT_THAT(sent(programs[3]), testing::ElementsAre(std::pair(5, 6 * kSample)));
  EXPECT_THAT(sent(programs[4]), testing::ElementsAre(std::pair(6, 3 * kSample), std::pair(7, 3 * kSample), std::pair(8, 3 * kSample),
                                                      std::pair(9, 3 * kSample)));
}

TEST(UnequalProgram, WidthsThatDoNotDivideCutThePartsWhereTheyMeet) {
  const Case c = of_widths({2, 3});
  const auto programs = compile(c.plan, c.model);
  EXPECT_THAT(sent(programs[0]), testing::ElementsAre(std::pair(2, 8 * kSample), std::pair(3, 4 * kSample)));
  EXPECT_THAT(sent(programs[1]), testing::ElementsAre(std::pair(3, 4 * kSample), std::pair(4, 8 * kSample)));
}

TEST(UnequalProgram, StagesThatShareTheBatchUnevenlyCutItWhereTheyMeet) {
  Case c = of_widths({2, 2});
  c.plan.stages[0].shares = {{1, 18}, {1, 6}};
  EXPECT_THAT(sent(compile(c.plan, c.model)[0]), testing::ElementsAre(std::pair(2, 12 * kSample), std::pair(3, 6 * kSample)));
  c.plan.stages[1].shares = c.plan.stages[0].shares;
  EXPECT_THAT(sent(compile(c.plan, c.model)[0]), testing::ElementsAre(std::pair(2, 18 * kSample)));
  EXPECT_THAT(sent(compile(c.plan, c.model)[1]), testing::ElementsAre(std::pair(3, 6 * kSample)));
}

TEST(UnequalProgram, EqualWidthsCutDifferentlySendTheirPartsToEqualIndices) {
  Case c = of_widths({4, 4});
  c.plan.stages[1].runs.front().strategy.dp = 2;
  c.plan.stages[1].runs.front().strategy.tp = 2;
  EXPECT_THAT(sent(compile(c.plan, c.model)[1]), testing::ElementsAre(std::pair(5, 6 * kSample)));
  // Cut alike, tensor-parallel ranks all pass on what they all hold.
  c.plan.stages[0].runs.front().strategy = c.plan.stages[1].runs.front().strategy;
  EXPECT_THAT(sent(compile(c.plan, c.model)[1]), testing::ElementsAre(std::pair(5, 12 * kSample)));
}

// Of a group by the beginning of its name.
std::vector<int> members(const Program& program, const std::string& name) {
  for (const CommGroup& group : program.groups)
    if (group.name.starts_with(name)) return group.ranks;
  return {};
}

TEST(ContextProgram, RanksOfAReplicaHoldPartsOfItsSequencesAndTheSameWeights) {
  Case c = of_widths({8, 8});
  for (plan::Stage& stage : c.plan.stages) stage.runs.front().strategy = {.dp = 2, .tp = 2, .cp = 2};
  const auto programs = compile(c.plan, c.model);
  check(programs);
  const Program& program = programs[13];  // replica 1, context-parallel index 0, tensor-parallel index 1 of the second stage
  const Cut& cut = program.cuts.front();
  EXPECT_EQ(cut.context_index, 0);
  EXPECT_EQ(cut.context_size, 2);
  EXPECT_THAT(program.groups[static_cast<std::size_t>(cut.context_group)].ranks, testing::ElementsAre(13, 15));
  EXPECT_THAT(program.groups[static_cast<std::size_t>(cut.tensor_group)].ranks, testing::ElementsAre(12, 13));
  EXPECT_THAT(members(program, "dp"), testing::ElementsAre(9, 11, 13, 15));
  EXPECT_EQ(programs[15].cuts.front().context_index, 1);
  // Both hold parts of the same samples.
  EXPECT_EQ(programs[15].cuts.front().samples_before, cut.samples_before);
  EXPECT_EQ(cut.micro_batch_size, 12);
}

TEST(ContextProgram, EachRankSendsItsPartOfTheSamplesToEqualIndices) {
  Case c = of_widths({4, 4});
  for (plan::Stage& stage : c.plan.stages) stage.runs.front().strategy = {.dp = 2, .cp = 2};
  const auto programs = compile(c.plan, c.model);
  for (int rank = 0; rank < 4; ++rank) {
    const auto& all = programs[static_cast<std::size_t>(rank)].instructions;
    const auto send = std::find_if(all.begin(), all.end(), [](const Instruction& each) { return each.op == Op::send_activation; });
    ASSERT_NE(send, all.end());
    EXPECT_EQ(send->peer, rank + 4);
    EXPECT_EQ(send->bytes.value, 6 * kSample);
    EXPECT_EQ(send->offset.value, rank * 6 * kSample);
  }
}

// The first instruction of an operation.
int find(const Program& program, Op op) {
  const auto& all = program.instructions;
  return static_cast<int>(std::find_if(all.begin(), all.end(), [&](const Instruction& each) { return each.op == op; }) - all.begin());
}

// Two replicas before one of two tensor-parallel ranks, each of which is sent half of the samples and needs all of them.
Case before_tensor_parallel() {
  Case c = of_widths({2, 2});
  c.plan.stages[1].runs.front().strategy.dp = 1;
  c.plan.stages[1].runs.front().strategy.tp = 2;
  return c;
}

TEST(UnequalProgram, TensorParallelRanksGatherThePartsThatTheyReceive) {
  const Case c = before_tensor_parallel();
  const auto programs = compile(c.plan, c.model);
  check(programs);
  const Program& program = programs[3];
  const int received = find(program, Op::receive_activation);
  const int gathered = find(program, Op::gather_activation);
  const int passed = find(program, Op::forward);
  EXPECT_EQ(program.instructions[received].peer, 1);
  EXPECT_EQ(program.instructions[received].bytes.value, 12 * kSample);
  EXPECT_EQ(program.instructions[received].offset.value, 12 * kSample);
  EXPECT_THAT(program.instructions[gathered].after, testing::ElementsAre(received));
  EXPECT_EQ(program.instructions[gathered].bytes.value, 24 * kSample);
  EXPECT_THAT(program.groups[program.instructions[gathered].group].ranks, testing::ElementsAre(2, 3));
  EXPECT_THAT(program.instructions[passed].after, testing::ElementsAre(gathered));
  // Replicas alone need nothing but their own samples.
  EXPECT_EQ(find(programs[0], Op::gather_gradient), static_cast<int>(programs[0].instructions.size()));
}

TEST(UnequalProgram, AGatherThatDoesNotWaitForItsPartIsFound) {
  const Case c = before_tensor_parallel();
  auto programs = compile(c.plan, c.model);
  programs[3].instructions[find(programs[3], Op::gather_activation)].after.clear();
  expect_refused(programs, "does not wait for what it gathers");
}

TEST(UnequalProgram, AMessageOfAnotherPartThanIsReceivedIsFound) {
  const Case c = of_widths({2, 2});
  auto programs = compile(c.plan, c.model);
  programs[1].instructions[find(programs[1], Op::send_activation)].offset = {};
  expect_refused(programs, "which waits for something else");
}

TEST(UnequalProgram, PartsWithAGapBetweenThemAreFound) {
  const Case c = of_widths({4, 2});
  auto programs = compile(c.plan, c.model);
  for (int rank : {1, 4})
    for (Instruction& each : programs[rank].instructions)
      if ((each.op == Op::send_activation && rank == 1) || (each.op == Op::receive_activation && each.peer == 1)) each.offset += Bytes(4);
  expect_refused(programs, "where the message before it ends");
}

// Two replicas before two halves of each sequence: chunks 0 and 3, or 1 and 2, of the samples of each of them.
Case before_context_parallel() {
  Case c = of_widths({2, 2});
  c.plan.stages[1].runs.front().strategy.dp = 1;
  c.plan.stages[1].runs.front().strategy.cp = 2;
  return c;
}

TEST(ContextProgram, StagesThatCutSequencesOtherwisePassOnWhatBothSidesHave) {
  const Case c = before_context_parallel();
  const auto programs = compile(c.plan, c.model);
  check(programs);
  for (const int rank : {2, 3}) {
    const Program& program = programs[static_cast<std::size_t>(rank)];
    const Instruction& pass = program.instructions[static_cast<std::size_t>(find(program, Op::forward))];
    ASSERT_EQ(pass.after.size(), 2u);
    for (std::size_t from = 0; from < 2; ++from) {
      const Instruction& receive = program.instructions[static_cast<std::size_t>(pass.after[from])];
      EXPECT_EQ(receive.peer, static_cast<int>(from));
      EXPECT_EQ(receive.bytes.value, 6 * kSample);
      const CrossedParts& parts = program.crossed.at(static_cast<std::size_t>(receive.crossed));
      EXPECT_EQ(parts.own.context_index, rank - 2);
      EXPECT_EQ(parts.peer.samples_before, static_cast<std::int64_t>(12 * from));
    }
  }
}

TEST(ContextProgram, MessagesThatBringTooLittleOrSomethingElseAreFound) {
  const Case c = before_context_parallel();
  auto programs = compile(c.plan, c.model);
  programs[2].crossed.back().peer.end -= 1;
  expect_refused(programs, "elements that no message brings");
  programs = compile(c.plan, c.model);
  for (Instruction& each : programs[0].instructions)
    if (each.op == Op::send_activation && each.peer == 3) each.crossed = 0;
  expect_refused(programs, "which waits for something else");
}

// The ranks of the embedding's stage hold the whole table each, those of the head's half of it.
TEST(UnequalProgram, ATiedParameterThatStagesCutDifferentlyIsSummedWholeAndOnce) {
  Case c = before_tensor_parallel();
  c.model = small_model(4, true);
  c.plan.stages.back().runs.back().last = c.model.block_count();
  const auto programs = compile(c.plan, c.model);
  check(programs);
  for (const Program& program : programs) {
    const Instruction& tied = program.instructions[find(program, Op::reduce_tied)];
    EXPECT_EQ(tied.bytes.value, 256 * 64 * 4);
    EXPECT_THAT(program.groups[tied.group].ranks, testing::ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(program.buckets[tied.bucket].whole, 256 * 64);
    for (const Instruction& each : program.instructions)
      EXPECT_FALSE(each.op == Op::reduce_gradients && each.bucket == tied.bucket) << label(program, 0);
  }
}

TEST(UnequalProgram, FoldedHasOneMessageForAllBetweenTwoStages) {
  const Case c = of_widths({2, 3});
  const auto programs = compile_folded(c.plan, c.model, {0, 2});
  EXPECT_THAT(sent(programs[0]), testing::ElementsAre(std::pair(2, 24 * kSample)));
}

TEST(UnequalProgram, APassThatWaitsForOneOfItsTwoMessagesIsFound) {
  const Case c = of_widths({4, 2});
  auto programs = compile(c.plan, c.model);
  for (Instruction& instruction : programs[4].instructions)
    if (instruction.op == Op::forward && instruction.micro_batch == 1) {
      ASSERT_EQ(instruction.after.size(), 2u);
      instruction.after.pop_back();
    }
  try {
    check(programs);
    FAIL() << "the check passed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("does not wait for what it reads"));
  }
}

TEST(Program, AParameterMayStandInManyStages) {
  // Both embeddings and the head share one table.
  const auto model = model::read_model(
      ConfigNode::parse("{arch: t5, hidden: 64, layers: 2, heads: 4, ffn: 128, seq: 16, decoder_seq: 8, vocab: 256}", "model"));
  for (int pipeline_size = 1; pipeline_size <= 4; ++pipeline_size)
    check(compile(make_plan(model, {.dp = 2, .pipeline_size = pipeline_size, .tp = 2, .micro_batches = 3}), model));
}

TEST(UnequalProgram, BlocksOfOneStageReduceOverTheirOwnGroups) {
  Case c = of_widths({8});
  Strategy wide;
  wide.dp = 2;
  wide.tp = 4;
  Strategy long_one;
  long_one.dp = 2;
  long_one.cp = 2;
  long_one.tp = 2;
  long_one.zero = 2;
  c.plan.stages[0].runs = {{0, 2, wide}, {2, 4, long_one}};
  const auto programs = compile(c.plan, c.model);
  check(programs);
  std::map<std::string, std::vector<int>> groups;
  for (const CommGroup& group : programs[5].groups) groups[group.name] = group.ranks;
  EXPECT_THAT(groups.at("dp.stage0.tp1"), testing::ElementsAre(1, 5));
  EXPECT_THAT(groups.at("dp.stage0.tp1of2"), testing::ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(groups.at("tp.stage0.dp1"), testing::ElementsAre(4, 5, 6, 7));
}

}  // namespace
}  // namespace tessera::program
