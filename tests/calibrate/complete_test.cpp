// The plans that rows of measured steps stand for.
#include <gtest/gtest.h>

#include "calibrate/row.hpp"

namespace tessera::calibrate {
namespace {

// Six layers on four ranks of two stages each: with embedding and head as a layer each, every stage has one block, and under a V the
// first rank has both ends.
TEST(Complete, EveryStageOfAVHasABlock) {
  Row row;
  row.shape = {.layers = 6, .hidden = 512, .heads = 8, .kv_heads = 8, .head_dim = 64, .ffn = 2048, .vocab = 32000, .seq = 1024};
  row.degrees.pp = 4;
  row.degrees.schedule = plan::Schedule::zb_v;
  row.degrees.global_batch = 16;
  row.group.name = "a100-80";
  row.group.device = cluster::known_device("a100-80");
  row.group.nodes = 1;
  row.group.devices_per_node = row.group.adapters = 4;
  row.group.inside = {"inside", BytesPerSecond(300e9), Seconds(0), false};
  row.group.network = {"network", BytesPerSecond(25e9), Seconds(0), false};
  complete(row, {{"iteration_s", "1"}});
  ASSERT_EQ(row.skipped, "");
  ASSERT_EQ(row.plan.stages.size(), 8u);
  for (const plan::Stage& stage : row.plan.stages) {
    ASSERT_FALSE(stage.runs.empty());
    EXPECT_EQ(stage.last_block() - stage.first_block(), 1);
  }
  EXPECT_EQ(row.plan.stages.back().last_block(), row.model.block_count());
}

}  // namespace
}  // namespace tessera::calibrate
