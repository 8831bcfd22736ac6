#include "calibrate/row.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "calibrate/extent.hpp"

namespace tessera::calibrate {
namespace {

Cells mixtral() {
  return {{"model", "Mixtral 8x7B"},
          {"layers", "32"},
          {"hidden", "4096"},
          {"heads", "32"},
          {"kv_heads", "8"},
          {"vocab", "32000"},
          {"seq", "4096"},
          {"experts", "8"},
          {"expert_ffn", "14336"},
          {"experts_per_token", "2"},
          {"gpu", "H100-80GB"},
          {"gpus", "64"},
          {"gpus_per_node", "8"},
          {"dp", "64"},
          {"ep", "8"},
          {"micro_batch", "1"},
          {"schedule", "ZeRO-1"},
          {"global_batch", "256"},
          {"precision", "bf16"}};
}

TEST(Row, ColumnsSayExperts) {
  Row row = read_row("rows", mixtral(), 1);
  build(row);
  ASSERT_EQ(row.skipped, "");
  // 46.7e9 parameters (Jiang et al. 2024, table 1), the vocabulary as it is.
  EXPECT_NEAR(static_cast<double>(row.model.parameter_count()), 46.7e9, 0.05e9);
  EXPECT_EQ(row.plan.stages.front().strategy_of(1).ep, 8);
}

TEST(Row, WidthOfAHeadIsNotAlwaysHiddenOverHeads) {
  Cells cells = mixtral();
  cells["head_dim"] = "256";
  Row wide = read_row("rows", cells, 1);
  Row plain = read_row("rows", mixtral(), 1);
  build(wide);
  build(plain);
  ASSERT_EQ(wide.skipped, "");
  // Queries and outputs of 32 heads, keys and values of 8, each 128 wider.
  EXPECT_EQ(wide.model.parameter_count() - plain.model.parameter_count(), 32LL * 4096 * 128 * (2 * 32 + 2 * 8));
}

TEST(Row, PlanWithoutAMeasuredStepIsBuiltAndNotComplete) {
  Row built = read_row("rows", mixtral(), 1);
  build(built);
  EXPECT_EQ(built.skipped, "");
  EXPECT_EQ(built.plan.world_size(), 64);
  Row completed = read_row("rows", mixtral(), 1);
  complete(completed, mixtral());
  EXPECT_EQ(completed.skipped, "it states no time, throughput or FLOP rate");
}

TEST(Row, NamesWhatTheTableLeavesOpenAndTheStepDependsOn) {
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  Cells cells = mixtral();
  Row open = read_row("rows", cells, 1);
  build(open);
  EXPECT_THAT(open.guesses, ElementsAre("no recomputation", "gradients exchanged in 16 bits", "the network's rate"));
  cells["recompute"] = "none";
  cells["gradient_bits"] = "32";
  cells["interconnect"] = "8x400Gb";
  Row stated = read_row("rows", cells, 1);
  build(stated);
  EXPECT_THAT(stated.guesses, IsEmpty());
  EXPECT_EQ(stated.stack.gradient_bytes, 4);
  for (const char* column : {"micro_batch", "schedule", "precision", "ep", "kv_heads", "vocab"}) cells[column] = "";
  cells["recompute"] = "none (not stated)";
  cells["tp"] = "2";
  cells["dp"] = "16";
  cells["pp"] = "2";
  Row more = read_row("rows", cells, 1);
  build(more);
  EXPECT_THAT(more.guesses, ElementsAre("as many heads of keys and values as of queries", "GPT-2's vocabulary", "the size of micro-batches",
                                        "no recomputation", "no sequence parallelism", "no sharding", "one stage on a rank",
                                        "over how many ranks experts are spread", "products in 16 bits"));
}

// What a plan does not do needs no guess: nothing leaves the node, nothing is replicated or in stages.
TEST(Row, GuessesNothingThatTheStepDoesNotDependOn) {
  Cells cells = mixtral();
  for (const char* column : {"gpus", "dp", "ep"}) cells[column] = "1";
  cells["global_batch"] = "8";
  cells["schedule"] = "";
  cells["recompute"] = "full";
  Row row = read_row("rows", cells, 1);
  build(row);
  EXPECT_THAT(row.guesses, ::testing::IsEmpty());
}

TEST(Row, InterconnectSaysHowManyAdaptersOfWhichRate) {
  const auto group = [](const char* links) {
    Cells cells = mixtral();
    cells["interconnect"] = links;
    return read_row("rows", cells, 1).group;
  };
  EXPECT_EQ(group("NVLink; 4x Omni-Path 100Gb per node").adapters, 4);
  EXPECT_EQ(group("NVLink; 4x Omni-Path 100Gb per node").network.bandwidth.value, 12.5e9);
  EXPECT_EQ(group("NVLink3 600GB/s intra; 8x200Gb HDR IB per node").network.bandwidth.value, 25e9);
  EXPECT_EQ(group("400Gb RDMA per GPU").adapters, 8);
  EXPECT_EQ(group("2x25Gb").adapters, 2);
  EXPECT_EQ(group("").network.bandwidth.value, 50e9);
}

// What rows that leave it open have is assumed, until a row states it.
TEST(Row, ReachOfRowsTellsStatedFromAssumed) {
  Row open = read_row("rows", mixtral(), 1);
  build(open);
  const profile::Extent alone = extent_of({&open});
  EXPECT_EQ(alone.ranges.at("devices"), (profile::Range{64, 64}));
  EXPECT_EQ(alone.ranges.at("network"), (profile::Range{400, 400}));
  EXPECT_EQ(alone.ranges.at("expert_width"), (profile::Range{14336, 14336}));
  EXPECT_EQ(alone.ranges.at("experts"), (profile::Range{8, 8}));
  EXPECT_EQ(alone.ranges.at("zero-1"), (profile::Range{64, 64}));
  EXPECT_EQ(alone.assumed, std::set<std::string>{"network"});
  Cells cells = mixtral();
  cells["interconnect"] = "8x200Gb";
  Row stated = read_row("rows", cells, 2);
  build(stated);
  const profile::Extent both = extent_of({&open, &stated});
  EXPECT_EQ(both.ranges.at("network"), (profile::Range{200, 200}));
  EXPECT_TRUE(both.assumed.empty());
}

TEST(Row, DevicesHaveTheirHosts) {
  Cells cells = mixtral();
  cells["gpu"] = "Ascend 910B 64GB";
  EXPECT_EQ(read_row("rows", cells, 1).group.device.name, "ascend910b");
  EXPECT_EQ(read_row("rows", cells, 1).group.adapters, 8);
  cells["gpu"] = "V100-SXM2-32GB";
  EXPECT_EQ(read_row("rows", cells, 1).group.device.name, "v100-32");
  cells["gpu"] = "abacus";
  EXPECT_NE(read_row("rows", cells, 1).skipped.find("abacus"), std::string::npos);
}

}  // namespace
}  // namespace tessera::calibrate
