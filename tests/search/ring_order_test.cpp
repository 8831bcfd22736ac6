#include <gmock/gmock.h>

#include "plan/plan_helper.hpp"
#include "profile/host_links.hpp"
#include "search/search.hpp"

namespace tessera::search {
namespace {

using ::testing::ElementsAre;

cluster::ClusterSpec hosts(int nodes) {
  cluster::ClusterSpec out;
  out.groups.emplace_back().network.name = "lab";
  out.groups.front().nodes = nodes;
  return out;
}

// Every pair of hosts but this one is fast.
profile::Profile with_slow_pair(int nodes, int slow_a, int slow_b) {
  profile::Profile out;
  for (int a = 0; a < nodes; ++a)
    for (int b = a + 1; b < nodes; ++b) {
      profile::CommSample sample;
      sample.operation = "send";
      sample.link = profile::pair_link("lab", a, b);
      sample.bandwidth = BytesPerSecond(a == slow_a && b == slow_b ? 25e6 : 250e6);
      out.communication.push_back(sample);
    }
  return out;
}

// One stage of dp replicas of tp ranks, consecutive ranks of which share a node.
plan::Plan replicas(int dp, int tp, int per_node) {
  plan::Plan out;
  out.global_batch = 16;
  plan::Stage stage;
  for (int rank = 0; rank < dp * tp; ++rank) {
    stage.ranks.push_back(rank);
    out.ranks.push_back({.group = 0, .node = rank / per_node, .device = rank % per_node});
  }
  stage.runs = {{.first = 0, .last = 4, .strategy = {.dp = dp, .tp = tp}}};
  out.stages = {stage};
  return out;
}

TEST(OrderByLinks, KeepsTheRingFromASlowPair) {
  plan::Plan plan = replicas(4, 1, 1);
  order_by_links(plan, hosts(4), with_slow_pair(4, 0, 1));
  EXPECT_THAT(plan.stages[0].ranks, ElementsAre(0, 2, 1, 3));
  EXPECT_TRUE(plan.stages[0].shares.empty());
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(plan.ranks[static_cast<std::size_t>(rank)].node, rank);
  const std::vector<int> once = plan.stages[0].ranks;
  order_by_links(plan, hosts(4), with_slow_pair(4, 0, 1));
  EXPECT_EQ(plan.stages[0].ranks, once);
}

TEST(OrderByLinks, KeepsTensorGroupsTogether) {
  plan::Plan plan = replicas(4, 2, 2);
  order_by_links(plan, hosts(4), with_slow_pair(4, 1, 2));
  EXPECT_THAT(plan.stages[0].ranks, ElementsAre(0, 1, 2, 3, 6, 7, 4, 5));
}

TEST(OrderByLinks, LetsEachRankKeepItsSamples) {
  plan::Plan plan = replicas(4, 1, 1);
  plan.stages[0].shares = {{2, 12}, {1, 3}, {1, 1}};
  order_by_links(plan, hosts(4), with_slow_pair(4, 0, 1));
  EXPECT_THAT(plan.stages[0].ranks, ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(plan.stages[0].shares, ElementsAre(plan::Share{1, 6}, plan::Share{1, 3}, plan::Share{1, 6}, plan::Share{1, 1}));
}

TEST(OrderByLinks, LeavesWhatItsRuleDoesNotCover) {
  const std::vector<int> given = {0, 1, 2, 3};
  const auto after = [](plan::Plan plan, const profile::Profile& profile) {
    order_by_links(plan, hosts(4), profile);
    return plan.stages[0].ranks;
  };
  EXPECT_EQ(after(replicas(4, 1, 1), {}), given);
  EXPECT_EQ(after(replicas(4, 1, 1), with_slow_pair(4, 0, 2)), given);  // no hop of the ring
  plan::Plan shards = replicas(4, 1, 1);
  shards.stages[0].runs[0].strategy.zero = 1;
  shards.stages[0].runs[0].strategy.shards = 2;
  EXPECT_EQ(after(shards, with_slow_pair(4, 0, 1)), given);
  plan::Plan pipeline = replicas(4, 1, 1);
  pipeline.stages.push_back(pipeline.stages[0]);
  pipeline.stages[1].ranks = {1, 0, 2, 3};
  EXPECT_EQ(after(pipeline, with_slow_pair(4, 0, 1)), given);
}

}  // namespace
}  // namespace tessera::search
