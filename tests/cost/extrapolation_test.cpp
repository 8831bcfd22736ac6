// How far plans lie from what their prices were fitted to.
#include "cost/extrapolation.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temporary_folder.hpp"
#include "plan/plan_helper.hpp"

namespace tessera::cost {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// All blocks under one strategy, on as many pipeline ranks as there are devices for.
plan::Plan plan_of(const model::ModelSpec& model, const cluster::ClusterSpec& cluster, const plan::Strategy& strategy) {
  plan::Plan plan;
  plan.precision = model::Precision::bf16;
  plan.global_batch = 64;
  plan.micro_batches = 64 / strategy.dp;
  const cluster::ResourceGroup& group = cluster.groups.front();
  for (int rank = 0; rank < cluster.device_count(); ++rank)
    plan.ranks.push_back({0, rank / group.devices_per_node, rank % group.devices_per_node, 1});
  const int stages = cluster.device_count() / strategy.ranks();
  for (int stage = 0; stage < stages; ++stage) {
    plan::Stage& of = plan.stages.emplace_back();
    for (int i = 0; i < strategy.ranks(); ++i) of.ranks.push_back(stage * strategy.ranks() + i);
    of.runs.push_back({model.block_count() * stage / stages, model.block_count() * (stage + 1) / stages, strategy});
  }
  return plan;
}

class Extrapolations : public ::testing::Test {
 protected:
  // A cluster whose stack was measured on this plan alone, on two nodes of eight A100.
  void measure(const plan::Strategy& strategy) {
    const cluster::ClusterSpec cluster = plan::gpu_cluster(2, 8);
    profile::Calibration calibration;
    calibration.name = calibration.stack = "ours";
    calibration.accelerator = "a100";
    calibration.measured = std::make_shared<const profile::Extent>(extent_of(plan_of(model_, cluster, strategy), model_, cluster, 0));
    stack_ = folder_.write("ours.yaml", to_yaml(calibration)).string();
  }
  cluster::ClusterSpec nodes(int count) const {
    cluster::ClusterSpec cluster = plan::gpu_cluster(count, 8);
    cluster.groups.front().stack = stack_;
    return cluster;
  }
  std::vector<std::string> texts(const plan::Strategy& strategy, const cluster::ClusterSpec& cluster) const {
    std::vector<std::string> out;
    for (const Extrapolation& one : extrapolated(plan_of(model_, cluster, strategy), model_, cluster)) out.push_back(to_text(one));
    return out;
  }

  const TemporaryFolder folder_;
  const model::ModelSpec model_ = plan::preset_job("llama-2-7b", 64).model;
  std::string stack_;
};

TEST_F(Extrapolations, ThereAreNoneOfWhatWasMeasured) {
  const plan::Strategy strategy{.dp = 8, .tp = 2, .zero = 1};
  measure(strategy);
  EXPECT_THAT(texts(strategy, nodes(2)), IsEmpty());
  EXPECT_TRUE(within_measured(plan_of(model_, nodes(2), strategy), model_, nodes(2)));
}

TEST_F(Extrapolations, SayWhichTermsGoFurtherAndHowFar) {
  measure({.dp = 8, .tp = 2, .zero = 1});
  EXPECT_THAT(texts({.dp = 32, .tp = 2, .zero = 1}, nodes(8)),
              ElementsAre("64 devices (measured at 16, 4 x)", "ZeRO-1 over 32 ranks (measured at 8, 4 x)"));
  EXPECT_THAT(texts({.dp = 4, .tp = 2, .zero = 1, .cp = 2}, nodes(2)),
              ElementsAre("micro-batches of 2048 positions on a rank (measured at 4096, 0.5 x)",
                          "ring attention over 2 ranks (never measured under this stack)"));
  EXPECT_THAT(
      texts({.dp = 2, .tp = 4, .zero = 0, .recompute = model::Recompute::full}, nodes(2)),
      ElementsAre("tensor-parallel exchange over 4 ranks (measured at 2, 2 x)",
                  "gradient exchange over 2 replicas (never measured under this stack)",
                  "1f1b over 2 pipeline ranks (never measured under this stack)", "recompute full (never measured under this stack)"));
}

// Tensor parallelism in one step and ring attention in another say nothing about both at once.
TEST_F(Extrapolations, NameWhatWasNeverMeasuredTogether) {
  const cluster::ClusterSpec cluster = plan::gpu_cluster(2, 8);
  profile::Calibration calibration;
  calibration.name = calibration.stack = "ours";
  calibration.accelerator = "a100";
  profile::Extent measured = extent_of(plan_of(model_, cluster, {.dp = 8, .tp = 2, .zero = 1}), model_, cluster, 0);
  measured.add(extent_of(plan_of(model_, cluster, {.dp = 4, .zero = 1, .cp = 4}), model_, cluster, 0));
  calibration.measured = std::make_shared<const profile::Extent>(measured);
  cluster::ClusterSpec ours = cluster;
  ours.groups.front().stack = folder_.write("ours.yaml", to_yaml(calibration)).string();
  EXPECT_THAT(texts({.dp = 2, .tp = 2, .zero = 1, .cp = 4}, ours),
              ElementsAre("tensor parallelism, ring attention and ZeRO-1 in one step (each was measured, never together)"));
  EXPECT_THAT(texts({.dp = 8, .tp = 2, .zero = 1}, ours), IsEmpty());
}

TEST_F(Extrapolations, TellWhatIsGivenFromWhatThePlanChooses) {
  const plan::Strategy strategy{.dp = 8, .tp = 2, .zero = 1};
  measure(strategy);
  cluster::ClusterSpec faster = nodes(2);
  faster.groups.front().network.bandwidth = 2 * faster.groups.front().network.bandwidth;
  const plan::Plan plan = plan_of(model_, faster, strategy);
  const std::vector<Extrapolation> all = extrapolated(plan, model_, faster);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all.front().quantity, "network");
  EXPECT_TRUE(all.front().given);
  EXPECT_DOUBLE_EQ(all.front().factor(), 2);
  // What a protocol leaves of the line's rate is the same link.
  cluster::ClusterSpec same = nodes(2);
  same.groups.front().network.bandwidth = 0.96 * same.groups.front().network.bandwidth;
  EXPECT_THAT(extrapolated(plan_of(model_, same, strategy), model_, same), IsEmpty());
  EXPECT_TRUE(within_measured(plan, model_, faster));
  const plan::Plan other = plan_of(model_, faster, {.dp = 8, .tp = 2, .zero = 3});
  EXPECT_FALSE(within_measured(other, model_, faster));
  const Extrapolation last = extrapolated(other, model_, faster).back();
  EXPECT_EQ(last.part, "parameter exchange");
  EXPECT_FALSE(last.given);
}

// Hybrid sharding: gathers stay within groups, and the groups exchange gradients.
TEST_F(Extrapolations, CountTheRanksThatAnExchangeHas) {
  measure({.dp = 16, .zero = 3});
  EXPECT_THAT(
      texts({.dp = 16, .zero = 3, .shards = 8}, nodes(2)),
      ElementsAre("gradient exchange over 2 replicas (never measured under this stack)", "ZeRO-3 over 8 ranks (measured at 16, 0.5 x)"));
}

TEST(Extrapolation, ComparesDevicesThatNothingWasMeasuredOnWithAllOthers) {
  const model::ModelSpec model = plan::preset_job("llama-2-7b", 64).model;
  const auto cluster = plan::gpu_cluster(1, 8, "ascend910b");
  const plan::Plan plan = plan_of(model, cluster, {.dp = 1, .tp = 1, .cp = 8, .context = model::ContextKind::ulysses});
  const std::vector<Extrapolation> all = extrapolated(plan, model, cluster);
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(to_text(all.front()), "all times on ascend910b (no step of it was measured: data sheets and usual shares of them)");
  std::vector<std::string> texts;
  for (const Extrapolation& one : all) texts.push_back(to_text(one));
  EXPECT_THAT(texts, Contains("Ulysses attention over 8 ranks (never measured on any accelerator)"));
}

TEST(Extrapolation, IsNotForDevicesThatAProfileOrARooflinePrices) {
  const model::ModelSpec model = plan::job_of({}).model;
  const auto cluster = plan::cpu_cluster(4);
  plan::Plan plan = plan_of(model, cluster, {.dp = 4});
  plan.precision = model::Precision::f32;
  EXPECT_THAT(extrapolated(plan, model, cluster), IsEmpty());
  EXPECT_FALSE(within_measured(plan, model, cluster));
}

}  // namespace
}  // namespace tessera::cost
