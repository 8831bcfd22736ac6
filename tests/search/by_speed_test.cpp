// Hosts of one group that differ in speed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/config.hpp"
#include "cost/cost_model.hpp"
#include "plan/plan.hpp"
#include "search/search.hpp"
#include "sim/sim.hpp"

namespace tessera::search {
namespace {

model::JobSpec job_of(const std::string& parallel, int layers = 8) {
  model::JobSpec job =
      model::read_job(ConfigNode::parse(text("name: speeds\nmodel: {arch: llama, hidden: 256, layers: ", layers,
                                             ", heads: 4, kv_heads: 4, ffn: 768, seq: 128, vocab: 4096}\n"
                                             "data: {source: synthetic}\ntrain: {global_batch: 16, precision: fp32}\nparallel: ",
                                             parallel, "\n"),
                                        "job.yaml"));
  job.cluster.kind = model::ClusterChoice::Kind::file;
  return job;
}

cluster::ClusterSpec hosts_of(const std::string& speeds) {
  return cluster::read_cluster(ConfigNode::parse(
      "{name: hosts, groups: [{name: hosts, nodes: 4, devices_per_node: 1, speeds: " + speeds +
          ", inside: shm, network: {name: lab, bandwidth: 10 Gbit/s, latency: 100 us}, device: {name: host, vendor: cpu, peak: {fp32: 50 "
          "GFLOP/s}, memory: 8 GiB, memory_bandwidth: 10 GB/s, cores: 1}}]}",
      "cluster"));
}

TEST(HostsBySpeed, ReplicasTakeSamplesByTheirSpeed) {
  const model::JobSpec job = job_of("{dp: 4, pp: 1, tp: 1, micro_batches: 1}");
  const cluster::ClusterSpec hosts = hosts_of("[1.5, 1, 1, 0.5]");
  const plan::Plan plan = search(job, hosts, {}).best;
  std::vector<std::int64_t> samples;
  for (const plan::Share& share : plan.stages.front().shares)
    for (int i = 0; i < share.ranks; ++i) samples.push_back(share.samples / share.ranks);
  EXPECT_THAT(samples, ::testing::ElementsAre(6, 4, 4, 2));
  // The plan is one for the cluster that was given.
  EXPECT_EQ(plan.cluster_fingerprint, hosts.fingerprint());
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(std::pair(plan.ranks[static_cast<std::size_t>(rank)].group, plan.ranks[static_cast<std::size_t>(rank)].node),
              std::pair(0, rank));
  EXPECT_NO_THROW(plan::check(plan, job, hosts));
  // And priced there as it was in the search.
  const profile::Profile nothing;
  cost::CostModel cost_model(job.model, job.train, hosts, nothing);
  EXPECT_NEAR(sim::predict(plan, cost_model).step.value, plan.predicted->step.value, 1e-6 * plan.predicted->step.value);
}

// Of two hosts, one of which is twice as fast, each with two stages of the six blocks: so few that all cuts are looked at.
TEST(HostsBySpeed, PipelinesWithSeveralStagesARankAreCutByTheirSpeed) {
  for (const std::string schedule : {"zb-v", "interleaved, chunks: 2"}) {
    const model::JobSpec job = job_of("{dp: 1, pp: 2, tp: 1, micro_batches: 8, schedule: " + schedule + "}", 4);
    const cluster::ClusterSpec hosts = hosts_of("[2, 1, 1, 1]");
    plan::Plan plan = search(job, hosts, {}).best;
    EXPECT_NO_THROW(plan::check(plan, job, hosts));
    ASSERT_EQ(plan.stages.size(), 4u);
    EXPECT_TRUE(plan.ranks[0].node == 0 || plan.ranks[1].node == 0);
    const profile::Profile nothing;
    cost::CostModel cost_model(job.model, job.train, hosts, nothing);
    const double found = sim::predict(plan, cost_model).step.value;
    plan.order.clear();
    const plan::Strategy strategy = plan.stages.front().runs.front().strategy;
    for (int first = 1; first < 4; ++first)
      for (int second = first + 1; second < 5; ++second)
        for (int third = second + 1; third < 6; ++third) {
          const int cuts[] = {0, first, second, third, 6};
          for (std::size_t s = 0; s < 4; ++s) plan.stages[s].runs = {{cuts[s], cuts[s + 1], strategy}};
          EXPECT_GE(sim::predict(plan, cost_model).step.value, found * (1 - 1e-9))
              << schedule << ", cut at " << first << ", " << second << ", " << third;
        }
  }
}

TEST(HostsBySpeed, AFasterHostMakesAShorterStep) {
  const model::JobSpec job = job_of("auto");
  const auto step = [&](const std::string& speeds) { return search(job, hosts_of(speeds), {}).best.predicted->step.value; };
  const double even = step("[1, 1, 1, 1]");
  EXPECT_LT(step("[2, 1, 1, 1]"), even);
  EXPECT_GT(step("[0.5, 1, 1, 1]"), even);
  EXPECT_LT(step("[2, 2, 2, 2]"), 0.6 * even);
}

}  // namespace
}  // namespace tessera::search
