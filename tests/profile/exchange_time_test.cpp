#include "profile/exchange_time.hpp"

#include <gtest/gtest.h>

namespace tessera::profile {
namespace {

Calibration ideal() {
  Calibration calibration;
  calibration.inside = calibration.network = 1;
  calibration.launch = calibration.latency = 0;
  return calibration;
}

// Devices of 100 bytes a second among themselves; two adapters of 4 a second on each node.
cluster::ResourceGroup nodes_of_8(int nodes) {
  cluster::ResourceGroup group;
  group.nodes = nodes;
  group.devices_per_node = 8;
  group.inside = {"inside", BytesPerSecond(100), Seconds(0)};
  group.network = {"network", BytesPerSecond(4), Seconds(0)};
  group.adapters = 2;
  return group;
}

TEST(Exchanges, RanksOfOneStageShareTheAdaptersOfTheirNode) {
  const Exchanges two(nodes_of_8(2), ideal());
  EXPECT_DOUBLE_EQ(two.stage_message(100, 4), 100 * 4 / 8.0);
  EXPECT_DOUBLE_EQ(two.stage_message(100, 1), 100 / 8.0);
  EXPECT_DOUBLE_EQ(two.stage_message(100, 8), 100 * 8 / 8.0);
  EXPECT_DOUBLE_EQ(Exchanges(nodes_of_8(1), ideal()).stage_message(100, 4), 1);
}

TEST(Exchanges, RingsThatLeaveANodeShareItsAdapters) {
  const Exchanges exchanges(nodes_of_8(4), ideal());
  EXPECT_DOUBLE_EQ(exchanges.ring_step(100, {4, 2}), 1);              // two rings on each node
  EXPECT_DOUBLE_EQ(exchanges.ring_step(100, {16, 1}), 100 / 8.0);     // one ring
  EXPECT_DOUBLE_EQ(exchanges.ring_step(100, {8, 2}), 100 * 2 / 8.0);  // two
  EXPECT_DOUBLE_EQ(exchanges.ring_step(100, {4, 8}), 100 * 8 / 8.0);  // every device is of another ring
}

TEST(Exchanges, RingsOfRanksThatAreDealtOverNodesLeaveWithEveryHop) {
  const Exchanges dealt(nodes_of_8(4), ideal(), 4);
  EXPECT_DOUBLE_EQ(dealt.ring_step(100, {8, 1}), 100 * 8 / 8.0);
  EXPECT_DOUBLE_EQ(dealt.ring_step(100, {8, 4}), 1);
}

}  // namespace
}  // namespace tessera::profile
