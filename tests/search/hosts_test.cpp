#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cost/cost.hpp"
#include "plan/plan.hpp"
#include "plan/plan_helper.hpp"
#include "search/search.hpp"
#include "sim/sim.hpp"

namespace tessera::search {
namespace {

using ::testing::HasSubstr;

TEST(Search, PrefersFewerWorkersAcrossASlowNetwork) {
  const auto job = plan::job_of({.layers = 2, .global_batch = 4});
  auto cluster = plan::cpu_cluster(1, 4);
  cluster.groups[0].network.bandwidth = BytesPerSecond(1e5);
  EXPECT_EQ(search(job, cluster, {}).best.world_size(), 1);
}

// One host of 8 cores and one of 4.
cluster::ClusterSpec two_hosts(const std::string& between) {
  return cluster::read_cluster(
      ConfigNode::parse("name: two hosts\nbetween: " + between +
                            "\ngroups:\n"
                            "  - {name: new, device: 'cpu:zen4', cores: 8, memory: 64 GiB, inside: shm, network: tcp-10g}\n"
                            "  - {name: old, device: 'cpu:zen4', cores: 4, memory: 64 GiB, inside: shm, network: tcp-10g}\n",
                        "cluster.yaml"));
}

TEST(Search, UnequalHostsShareTheBatchByTheirSpeed) {
  const auto job = plan::job_of({.hidden = 512, .heads = 8, .kv_heads = 8, .ffn = 2048, .seq = 512, .global_batch = 48});
  const auto cluster = two_hosts("tcp-100g");
  const SearchResult result = search(job, cluster, {});
  check(result.best, job, cluster);
  ASSERT_FALSE(result.best.stages.front().shares.empty()) << to_json(result.best);
  const std::vector<plan::Share>& shares = result.best.stages.front().shares;
  EXPECT_EQ(shares[0].samples, 2 * shares[1].samples);
  EXPECT_THAT(explain(result, job.model, cluster),
              AllOf(HasSubstr("on all kinds"),
                    HasSubstr(text("of each ", result.best.samples(), " samples: ", shares[0].samples, " on 1 of new, "))));
  // Nothing on one host alone, and no even shares, are as fast.
  for (const Candidate& candidate : result.runners_up) EXPECT_GE(candidate.plan.predicted->step, result.best.predicted->step);
  plan::Plan even = result.best;
  even.stages.front().shares.clear();
  if (even.global_batch % (even.micro_batches * even.world_size()) == 0) {
    const profile::Profile none;
    cost::CostModel cost_model(job.model, job.train, cluster, none);
    EXPECT_GT(sim::predict(even, cost_model).step, result.best.predicted->step);
  }
}

TEST(Search, ThreeKindsOfHostsShareTheBatchInWholeReplicas) {
  const auto job = plan::job_of(
      {.hidden = 512, .heads = 8, .kv_heads = 8, .ffn = 2048, .seq = 512, .global_batch = 48, .parallel = "{dp: 14, threads: 1}"});
  const auto cluster = cluster::read_cluster(
      ConfigNode::parse("name: three\nbetween: tcp-100g\ngroups:\n"
                        "  - {name: a, device: 'cpu:zen4', cores: 8, memory: 64 GiB, inside: shm, network: tcp-10g}\n"
                        "  - {name: b, device: 'cpu:zen4', cores: 4, memory: 64 GiB, inside: shm, network: tcp-10g}\n"
                        "  - {name: c, device: 'cpu:zen4', cores: 2, memory: 64 GiB, inside: shm, network: tcp-10g}\n",
                        "cluster.yaml"));
  const plan::Plan best = search(job, cluster, {}).best;
  check(best, job, cluster);
  EXPECT_THAT(best.stages.front().shares, ::testing::ElementsAre(plan::Share{8, 24}, plan::Share{4, 16}, plan::Share{2, 8}));
}

TEST(Search, UnequalHostsMakeOnePipelineWhereTheLinkIsSlow) {
  const auto job = plan::job_of({.layers = 12, .hidden = 1024, .heads = 8, .kv_heads = 8, .ffn = 4096, .seq = 128, .global_batch = 48});
  const SearchResult result = search(job, two_hosts("tcp-1g"), {});
  ASSERT_EQ(result.best.stages.size() % 2, 0u) << to_json(result.best);
  EXPECT_NE(result.best.ranks.front().group, result.best.ranks.back().group) << to_json(result.best);
  EXPECT_THAT(result.best_family, HasSubstr("on all kinds"));
  // The faster host takes more blocks.
  int on_new = 0;
  for (const plan::Stage& stage : result.best.stages)
    if (result.best.ranks[static_cast<std::size_t>(stage.ranks.front())].group == 0) on_new += stage.last_block() - stage.first_block();
  EXPECT_GT(on_new, job.model.block_count() / 2);
}

TEST(Search, LeavesOutHostsThatDoNotDivide) {
  // Seven hosts cannot share a batch of six; six can.
  const auto job = plan::job_of(
      {.layers = 4, .hidden = 512, .heads = 8, .kv_heads = 8, .ffn = 2048, .seq = 512, .global_batch = 6, .parallel = "{tp: 1, pp: 1}"});
  EXPECT_EQ(search(job, plan::cpu_cluster(1, 7), {}).best.world_size(), 6);
}

TEST(Search, UsesOnlyTheVendorsItIsGiven) {
  auto cluster = plan::cpu_cluster(2);
  cluster.groups.push_back(plan::gpu_cluster(1, 2).groups[0]);
  cluster.between = cluster::known_link("pcie4");
  const auto job = plan::job_of({.hidden = 512});
  EXPECT_EQ(search(job, cluster, {}).best.ranks[0].group, 1);
  EXPECT_EQ(search(job, cluster, {}, {.top = 5, .vendors = {"cpu"}}).best.ranks[0].group, 0);
}

}  // namespace
}  // namespace tessera::search
