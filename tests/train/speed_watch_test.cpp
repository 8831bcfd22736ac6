#include "train/speed_watch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/config.hpp"
#include "base/error.hpp"

namespace tessera::train {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A pipeline of `stages` with `replicas` of each.
std::vector<program::Program> programs(int stages, int replicas) {
  const auto model = model::read_model(
      ConfigNode::parse("{arch: llama, hidden: 64, layers: 4, heads: 4, kv_heads: 4, ffn: 128, seq: 16, vocab: 256}", "model"));
  plan::Plan plan;
  plan.global_batch = 4 * replicas;
  plan.micro_batches = 2;
  plan.ranks.resize(static_cast<std::size_t>(stages) * replicas);
  const int blocks = model.block_count() / stages;
  for (int s = 0; s < stages; ++s) {
    plan::Stage stage;
    for (int d = 0; d < replicas; ++d) stage.ranks.push_back(s * replicas + d);
    stage.runs = {{s * blocks, s + 1 == stages ? model.block_count() : (s + 1) * blocks, {.dp = replicas}}};
    plan.stages.push_back(stage);
  }
  return program::compile(plan, model);
}

SpeedWindow window(const std::vector<double>& computing, double step = 1.0, const std::map<Connection, Seconds>& exchanges = {}) {
  SpeedWindow out{.steps = 2, .step = Seconds(step), .computing = {}, .exchanges = exchanges};
  for (const double seconds : computing) out.computing.push_back({{"forward of block 1", Seconds(seconds)}});
  return out;
}

std::vector<std::string> said(SpeedWatch& watch, const SpeedWindow& window, int times = 1) {
  std::vector<std::string> out;
  for (int i = 0; i < times; ++i)
    for (const SpeedChange& change : watch.add(window)) out.push_back((change.warns ? "" : "note: ") + change.words);
  return out;
}

TEST(SpeedWatch, NamesARankThatIsSlowerThanItsPeersOnceAndWhenItIsOver) {
  SpeedWatch watch(programs(1, 4), {"a", "a", "b", "b"});
  EXPECT_THAT(said(watch, window({0.5, 0.5, 0.51, 0.49}), 10), IsEmpty());
  const SpeedWindow slow = window({0.5, 0.5, 0.5, 0.8});
  EXPECT_THAT(said(watch, slow, 2), IsEmpty());
  EXPECT_THAT(said(watch, slow), ElementsAre("rank 3 on host b computes 1.6 x as long as its peers, above all in forward of block 1: 300.0 "
                                             "ms of a step of 1.00 s are spent waiting for it"));
  EXPECT_THAT(said(watch, slow, 10), IsEmpty());
  EXPECT_THAT(said(watch, window({0.5, 0.5, 0.5, 0.5}), 3),
              ElementsAre("note: rank 3 on host b computes as long as its peers again, after 26 steps"));
  EXPECT_THAT(said(watch, window({0.5, 0.5, 0.5, 0.5}), 10), IsEmpty());
}

TEST(SpeedWatch, ASingleSlowWindowIsNothing) {
  SpeedWatch watch(programs(1, 2), {"a", "a"});
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(said(watch, window({0.5, 5}), 2), IsEmpty());
    EXPECT_THAT(said(watch, window({0.5, 0.5})), IsEmpty());
  }
}

TEST(SpeedWatch, RanksOfOtherStagesAreNoPeers) {
  SpeedWatch watch(programs(2, 2), {"a", "a", "a", "a"});
  // The second stage computes twice as long as the first.
  EXPECT_THAT(said(watch, window({0.2, 0.2, 0.4, 0.4}), 20), IsEmpty());
  EXPECT_THAT(said(watch, window({0.3, 0.2, 0.4, 0.4}), 3),
              ElementsAre(testing::StartsWith("rank 0 computes 1.5 x as long as its peer, ")));
}

TEST(SpeedWatch, ARankWithoutPeersIsComparedWithItsBeginning) {
  SpeedWatch watch(programs(2, 1), {"a", "a"});
  EXPECT_THAT(said(watch, window({0.2, 0.4}), 20), IsEmpty());
  EXPECT_THAT(
      said(watch, window({0.2, 0.8}), 3),
      ElementsAre(
          "rank 1 computes 2.0 x as long as at the run's beginning, above all in forward of block 1: 400.0 ms of a step of 1.00 s are "
          "spent waiting for it"));
}

TEST(SpeedWatch, SaysInWhatARankIsSlow) {
  SpeedWatch watch(programs(1, 3), {"a", "a", "a"});
  SpeedWindow slow = window({0.5, 0.5, 0.5});
  for (Computing& computing : slow.computing) computing["backward of block 1"] = Seconds(0.9);
  slow.computing[2]["backward of block 1"] = Seconds(1.2);
  slow.computing[2]["forward of block 1"] = Seconds(0.7);
  EXPECT_THAT(said(watch, slow, 3),
              ElementsAre(testing::HasSubstr("rank 2 computes 1.4 x as long as its peers, above all in backward of block 1: ")));
  // Without peers, beside its own beginning.
  SpeedWatch alone(programs(3, 1), {"a", "a", "a"});
  SpeedWindow usual = slow;
  usual.computing[2] = usual.computing[0];
  EXPECT_THAT(said(alone, usual, 5), IsEmpty());
  EXPECT_THAT(said(alone, slow, 3), ElementsAre(testing::HasSubstr("as at the run's beginning, above all in backward of block 1: ")));
}

TEST(SpeedWatch, WhatCostsNothingIsNotNamed) {
  SpeedWatch watch(programs(1, 2), {"a", "a"});
  EXPECT_THAT(said(watch, window({0.005, 0.01}), 20), IsEmpty());
}

TEST(SpeedWatch, NamesALinkThatDrifts) {
  SpeedWatch watch(programs(2, 1), {"a", "b"});
  const Connection link{{0, 1}, {}};
  EXPECT_THAT(said(watch, window({0.4, 0.4}, 1, {{link, Seconds(0.1)}}), 10), IsEmpty());
  EXPECT_THAT(said(watch, window({0.4, 0.4}, 1, {{link, Seconds(0.14)}}), 10), IsEmpty());
  EXPECT_THAT(
      said(watch, window({0.4, 0.4}, 1, {{link, Seconds(0.3)}}), 10),
      ElementsAre(
          "messages from rank 0 on host a to rank 1 on host b take 3.0 x as long as at the run's beginning: 200.0 ms more in a step "
          "of 1.00 s"));
  EXPECT_THAT(
      said(watch, window({0.4, 0.4}, 1, {{link, Seconds(0.1)}}), 10),
      ElementsAre("note: messages from rank 0 on host a to rank 1 on host b take as long as at the run's beginning again, after 16 steps"));
}

TEST(SpeedWatch, TellsExchangesBetweenHostsFromThoseWithinOne) {
  for (const auto& [second_host, between] : {std::pair("b", true), {"a", false}}) {
    SpeedWatch watch(programs(1, 3), {"a", second_host, "c"});
    const Connection group{{0, 1}, "dp.stage0"};
    for (int i = 0; i < 10; ++i) EXPECT_THAT(watch.add(window({0.4, 0.4, 0.4}, 1, {{group, Seconds(0.1)}})), IsEmpty());
    std::vector<SpeedChange> changes;
    for (const double seconds : {0.3, 0.1})
      for (int i = 0; i < 10; ++i)
        for (const SpeedChange& change : watch.add(window({0.4, 0.4, 0.4}, 1, {{group, Seconds(seconds)}}))) changes.push_back(change);
    ASSERT_EQ(changes.size(), 2u);  // slow, and no longer
    for (const SpeedChange& change : changes) EXPECT_EQ(change.between_hosts, between);
  }
}

TEST(SpeedWatch, ALinkOfASlowRankIsNotNamed) {
  SpeedWatch watch(programs(1, 2), {"a", "a"});
  const Connection group{{0, 1}, "dp.stage0"};
  EXPECT_THAT(said(watch, window({0.4, 0.4}, 1, {{group, Seconds(0.1)}}), 10), IsEmpty());
  EXPECT_THAT(said(watch, window({0.4, 0.8}, 1, {{group, Seconds(0.5)}}), 10), ElementsAre(testing::StartsWith("rank 1 computes 2.0 x")));
}

// Of a ring with a slow link, the member before it is through long before the others.
TEST(SpeedWatch, AnExchangeOfAGroupLastsUntilTheLastMemberIsThrough) {
  const auto all = programs(1, 3);
  program::TracedStep step;
  for (const program::Program& program : all) {
    program::TracedRank& rank = step[program.rank];
    rank.step = {Seconds(0), Seconds(10)};
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      if (program.instructions[i].op != program::Op::reduce_gradients) continue;
      program::TracedInstruction& of = rank.instructions[static_cast<int>(i)];
      of.op = program.instructions[i].op;
      of.group = program.groups.at(static_cast<std::size_t>(program.instructions[i].group)).name;
      of.time = {Seconds(1 + program.rank), Seconds(program.rank == 1 ? 8 : 3.5)};
    }
  }
  const auto exchanges = exchanges_of(all, step);
  ASSERT_EQ(exchanges.size(), 1U);
  EXPECT_EQ(exchanges.begin()->first.ranks, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(exchanges.begin()->second, Seconds(5));
}

TEST(SpeedWatch, ExchangesBeginWhenAllHaveCome) {
  const auto all = programs(2, 1);
  program::TracedStep step;
  for (const program::Program& program : all) {
    program::TracedRank& rank = step[program.rank];
    rank.step = {Seconds(0), Seconds(10)};
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const program::Instruction& instruction = program.instructions[i];
      if (instruction.op != program::Op::send_activation && instruction.op != program::Op::receive_activation) continue;
      program::TracedInstruction& of = rank.instructions[static_cast<int>(i)];
      of.op = instruction.op;
      of.micro_batch = instruction.micro_batch;
      of.peer = instruction.peer;
      of.blocks = text('[', instruction.first_block, ')');
      // The receiver has waited from the beginning.
      const double sent = 1 + instruction.micro_batch;
      of.time =
          program.rank == 0 ? program::Interval{Seconds(sent), Seconds(sent + 0.125)} : program::Interval{Seconds(0), Seconds(sent + 0.25)};
    }
  }
  const auto exchanges = exchanges_of(all, step);
  ASSERT_EQ(exchanges.size(), 1U);
  EXPECT_EQ(exchanges.begin()->first.ranks, (std::vector<int>{0, 1}));
  EXPECT_DOUBLE_EQ(exchanges.begin()->second.value, 0.5);
}

}  // namespace
}  // namespace tessera::train
