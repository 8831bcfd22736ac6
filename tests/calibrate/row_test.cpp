#include "calibrate/row.hpp"

#include <gtest/gtest.h>

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
