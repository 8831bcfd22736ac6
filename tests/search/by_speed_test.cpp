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

model::JobSpec job_of(const std::string& parallel) {
  model::JobSpec job = model::read_job(ConfigNode::parse(
      "name: speeds\nmodel: {arch: llama, hidden: 256, layers: 8, heads: 4, kv_heads: 4, ffn: 768, seq: 128, vocab: 4096}\n"
      "data: {source: synthetic}\ntrain: {global_batch: 16, precision: fp32}\nparallel: " +
          parallel + "\n",
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
