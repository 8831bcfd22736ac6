#include "profile/kernel_time.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/expect_error.hpp"
#include "profile/exchange_time.hpp"

namespace tessera::profile {
namespace {

using testing::error_of;

Calibration ideal() {
  Calibration calibration;
  calibration.matmul = calibration.memory = calibration.inside = calibration.network = 1;
  calibration.launch = calibration.latency = calibration.rank_latency = calibration.depth_half = 0;
  return calibration;
}

TEST(TileShare, CountsWholeWaves) {
  // 108 tiles of 256 x 128 fill 108 units exactly; one more column of tiles needs a second wave.
  EXPECT_DOUBLE_EQ(tile_share(1, 256 * 12, 128 * 9, 108), 1.0);
  EXPECT_LT(tile_share(1, 256 * 12, 128 * 10, 108), 0.8);
  EXPECT_DOUBLE_EQ(tile_share(1, 100, 100, 0), 1.0);
}

TEST(Kernels, AProductTakesItsFlopsOverThePeakWhenItFillsTheDevice) {
  const cluster::Device device = cluster::known_device("a100-80");
  const Kernels kernels(device, ideal(), Format::bf16);
  const double m = 256 * 12 * 8;
  const double n = 128 * 9 * 8;
  const double k = 8192;
  EXPECT_NEAR(kernels.product(1, m, n, k, 0, Format::bf16), 2 * m * n * k / 312e12, 1e-9);
  // And its bytes over the bandwidth when there are few operations.
  EXPECT_NEAR(kernels.product(1, 256, 128, 64, 1e9, Format::bf16), 1e9 / 2039e9, 1e-9);
}

TEST(Kernels, AVocabularyThatIsNoMultipleOf16BytesSlowsItsProductButStaysOnMatrixUnits) {
  const Kernels kernels(cluster::known_device("a100-80"), ideal(), Format::bf16);
  const double aligned = kernels.product(1, 12288, 50304, 768, 0, Format::bf16);
  const double odd = kernels.product(1, 12288, 50257, 768, 0, Format::bf16);
  EXPECT_GT(odd / aligned, 1.7);
  EXPECT_LT(odd / aligned, 2.6);
  EXPECT_NEAR(kernels.product(1, 12288, 50257, 768, 0, Format::bf16, true) / aligned, 1.0, 0.01);
  // The gradient of its input, of which the vocabulary is the depth.
  EXPECT_NEAR(kernels.product(1, 12288, 768, 50257, 0, Format::bf16) / kernels.product(1, 12288, 768, 50304, 0, Format::bf16),
              odd / aligned, 0.01);
}

TEST(Kernels, BatchedExtentsThatAreNoMultipleOf16BytesFallBackToVectorUnits) {
  const Kernels kernels(cluster::known_device("a100-80"), ideal(), Format::bf16);
  EXPECT_GT(kernels.product(96, 2048, 2048, 108, 0, Format::bf16), 8 * kernels.product(96, 2048, 2048, 112, 0, Format::bf16));
  EXPECT_LT(kernels.product(96, 2048, 2048, 108, 0, Format::bf16, true), kernels.product(96, 2048, 2048, 112, 0, Format::bf16));
}

TEST(Kernels, RefusesAFormatThatTheDeviceLacks) {
  EXPECT_EQ(error_of([] { Kernels(cluster::known_device("a100-80"), Calibration{}, Format::fp8); }).code(), ErrorCode::not_found);
}

cluster::ResourceGroup nodes_of_eight(int nodes) {
  cluster::ResourceGroup group;
  group.device = cluster::known_device("a100-80");
  group.nodes = nodes;
  group.devices_per_node = 8;
  group.inside = {"nvlink", BytesPerSecond(300e9), Seconds(0), false};
  group.network = {"ib", BytesPerSecond(25e9), Seconds(0), true};
  group.adapters = 8;
  return group;
}

TEST(Exchanges, RingsMoveWhatPatarasukAndYuanSay) {
  const Exchanges exchanges(nodes_of_eight(4), ideal());
  EXPECT_NEAR(exchanges.collective(Collective::all_reduce, 8e9, {8, 1}), 2 * 7.0 / 8 * 8e9 / 300e9, 1e-9);
  EXPECT_NEAR(exchanges.collective(Collective::all_gather, 8e9, {8, 1}), 7.0 / 8 * 8e9 / 300e9, 1e-9);
  // All 32 ranks: a ring has the whole node's adapters, 200 GB/s.
  EXPECT_NEAR(exchanges.collective(Collective::all_reduce, 8e9, {32, 1}), 2 * 31.0 / 32 * 8e9 / 200e9, 1e-9);
  // Eight groups side by side have an adapter each.
  EXPECT_NEAR(exchanges.collective(Collective::all_reduce, 8e9, {4, 8}), 2 * 3.0 / 4 * 8e9 / 25e9, 1e-9);
  EXPECT_EQ(exchanges.collective(Collective::all_reduce, 8e9, {1, 1}), 0);
}

TEST(Exchanges, GathersWaitForEveryRankOfTheRingAndSumsForTheTree) {
  Calibration calibration = ideal();
  calibration.rank_latency = 3e-6;
  const Exchanges waiting(nodes_of_eight(4), calibration);
  const Exchanges plain(nodes_of_eight(4), ideal());
  const auto wait = [&](Collective operation, int ranks) {
    return waiting.collective(operation, 1e6, {ranks, 1}) - plain.collective(operation, 1e6, {ranks, 1});
  };
  for (const int ranks : {8, 32}) {
    EXPECT_NEAR(wait(Collective::all_gather, ranks), (ranks - 1) * 3e-6, 1e-12);
    EXPECT_NEAR(wait(Collective::reduce_scatter, ranks), (ranks - 1) * 3e-6, 1e-12);
    EXPECT_EQ(wait(Collective::all_reduce, ranks), 0);
  }
}

TEST(Exchanges, ADomainLargerThanANodeKeepsInside) {
  cluster::ResourceGroup group = nodes_of_eight(4);
  const double apart = Exchanges(group, ideal()).collective(Collective::all_gather, 1e9, {32, 1});
  group.nodes_per_domain = 4;
  EXPECT_NEAR(Exchanges(group, ideal()).collective(Collective::all_gather, 1e9, {32, 1}), 31.0 / 32 * 1e9 / 300e9, 1e-9);
  EXPECT_LT(Exchanges(group, ideal()).collective(Collective::all_gather, 1e9, {32, 1}), apart);
}

TEST(Exchanges, AnOversubscribedRackSlowsWhatLeavesIt) {
  cluster::ResourceGroup group = nodes_of_eight(4);
  const double plain = Exchanges(group, ideal()).collective(Collective::all_reduce, 1e9, {4, 8});
  group.nodes_per_rack = 2;
  group.oversubscription = 3;
  EXPECT_NEAR(Exchanges(group, ideal()).collective(Collective::all_reduce, 1e9, {4, 8}), 3 * plain, 1e-9);
  EXPECT_NEAR(Exchanges(group, ideal()).collective(Collective::all_reduce, 1e9, {2, 8}),
              Exchanges(nodes_of_eight(4), ideal()).collective(Collective::all_reduce, 1e9, {2, 8}), 1e-12);
}

// Thirty-two ranks of four nodes: rank i on node i % 4.
TEST(Exchanges, RanksDealtOverNodesMeetOtherNeighbours) {
  const Exchanges in_order(nodes_of_eight(4), ideal());
  const Exchanges dealt(nodes_of_eight(4), ideal(), 4);
  EXPECT_EQ(dealt.ranks_per_domain({2, 1}), 1);
  EXPECT_EQ(dealt.ranks_per_domain({4, 1}), 1);
  EXPECT_EQ(dealt.ranks_per_domain({8, 1}), 2);
  EXPECT_EQ(dealt.ranks_per_domain({8, 4}), 8);
  EXPECT_EQ(dealt.ranks_per_domain({16, 2}), 8);
  EXPECT_EQ(Exchanges(nodes_of_eight(3), ideal(), 3).ranks_per_domain({12, 2}), 4);
  // Parts of a block on all nodes, each with one of a node's adapters; its replicas inside.
  EXPECT_NEAR(dealt.collective(Collective::all_reduce, 8e9, {4, 1}), in_order.collective(Collective::all_reduce, 8e9, {4, 8}), 1e-9);
  EXPECT_NEAR(dealt.collective(Collective::all_gather, 8e9, {8, 4}), in_order.collective(Collective::all_gather, 8e9, {8, 1}), 1e-9);
  EXPECT_NEAR(dealt.collective(Collective::all_reduce, 8e9, {32, 1}), in_order.collective(Collective::all_reduce, 8e9, {32, 1}), 1e-9);
  EXPECT_NEAR(dealt.message(1e9, 4), in_order.message(1e9, 1), 1e-12);
  EXPECT_NEAR(dealt.message(1e9, 1), in_order.message(1e9, 8), 1e-12);
  // Only what leaves its rack is slowed.
  cluster::ResourceGroup racks = nodes_of_eight(4);
  racks.nodes_per_rack = 2;
  racks.oversubscription = 3;
  const Exchanges dealt_in_racks(racks, ideal(), 4);
  EXPECT_NEAR(dealt_in_racks.message(1e9, 4), dealt.message(1e9, 4), 1e-12);
  EXPECT_NEAR(dealt_in_racks.message(1e9, 1), dealt.message(1e9, 1), 1e-12);
  EXPECT_NEAR(dealt_in_racks.message(1e9, 2), 3 * dealt.message(1e9, 2), 1e-9);
  EXPECT_NEAR(dealt_in_racks.collective(Collective::all_reduce, 8e9, {8, 4}), dealt.collective(Collective::all_reduce, 8e9, {8, 4}), 1e-9);
}

TEST(Exchanges, APcieSwitchIsShared) {
  cluster::ResourceGroup group = nodes_of_eight(1);
  group.devices_per_switch = 4;
  group.uplink = {"pcie4", BytesPerSecond(24e9), Seconds(0), true};
  EXPECT_NEAR(Exchanges(group, ideal()).collective(Collective::all_gather, 8e9, {8, 1}), 7e9 / 6e9, 1e-9);
}

TEST(Exchanges, CopiesOfAnItemLeaveANodeOnceForEachNodeThatWantsThem) {
  const Exchanges exchanges(nodes_of_eight(4), ideal());
  // One copy: three of four ranks' worth leave. Many copies of each item: every other node gets one.
  EXPECT_NEAR(exchanges.all_to_all(1e9, 1, {32, 1}), 1e9 * 3 / 4 / 25e9, 1e-9);
  EXPECT_NEAR(exchanges.all_to_all(1e9, 64, {32, 1}), 1e9 / 64 * 3 / 25e9, 2e-3);
}

TEST(Exchanges, MoreBytesAndMoreRanksNeverTakeLess) {
  EXPECT_TRUE(rc::check([] {
    const Exchanges exchanges(nodes_of_eight(16), Calibration{});
    const int stride = 1 << *rc::gen::inRange(0, 4);
    const int ranks = 1 << *rc::gen::inRange(1, 4);
    const double bytes = *rc::gen::inRange(1, 1'000'000'000);
    for (const Collective operation : {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter}) {
      const double time = exchanges.collective(operation, bytes, {ranks, stride});
      RC_ASSERT(exchanges.collective(operation, 2 * bytes, {ranks, stride}) >= time);
      RC_ASSERT(time > 0);
    }
  }));
}

}  // namespace
}  // namespace tessera::profile
