// Which hosts hold the tables of a job that names no parameter servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/config.hpp"
#include "plan/plan.hpp"
#include "search/search.hpp"
#include "sim/sim.hpp"

namespace tessera::search {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

model::JobSpec job_of(const std::string& servers) {
  model::JobSpec job = model::read_job(ConfigNode::parse(
      "name: clicks\nmodel: {arch: deepfm, dim: 8, dense: 13, tables: 26, hidden: [256, 256]}\ndata: {source: synthetic}\n"
      "train: {global_batch: 1024, precision: fp32, optimizer: {clip: 0}}\nparameter_servers: " +
          servers + "\nparallel: {dp: 3, pp: 1, tp: 1, micro_batches: 1}\n",
      "job.yaml"));
  job.cluster.kind = model::ClusterChoice::Kind::file;
  return job;
}

// One host is twice as fast as the two others.
cluster::ClusterSpec hosts() {
  return cluster::read_cluster(ConfigNode::parse(
      "{name: hosts, groups: [{name: hosts, nodes: 3, devices_per_node: 1, speeds: [2, 1, 1], inside: shm, network: {name: lab, bandwidth: "
      "10 Gbit/s, latency: 100 us}, device: {name: host, vendor: cpu, peak: {fp32: 50 GFLOP/s}, memory: 8 GiB, memory_bandwidth: 10 "
      "GB/s, cores: 1}}]}",
      "cluster"));
}

// Seconds of a look-up, of a rank's thread and of a server's; of a pull as of a push.
profile::Profile rows_of(double client, double server) {
  profile::Profile profile;
  for (const char* operation : {"pull", "push"})
    profile.rows.push_back({operation, {client, client, client}, {server, server, server}, 50});
  return profile;
}

std::vector<std::pair<int, int>> servers_in(const plan::Plan& plan) {
  std::vector<std::pair<int, int>> out;
  for (const plan::Server& server : plan.servers) out.emplace_back(server.rank, server.threads);
  return out;
}

std::vector<std::int64_t> samples_in(const plan::Plan& plan) {
  std::vector<std::int64_t> out;
  for (const plan::Share& share : plan.shares_of(plan.stages.front()))
    for (int i = 0; i < share.ranks; ++i) out.push_back(share.samples / share.ranks);
  return out;
}

TEST(Serving, IsEveryHostsWhereNobodyKnowsWhatRowsCost) {
  EXPECT_THAT(servers_in(search(job_of("{}"), hosts(), {}).best), ElementsAre(std::pair(0, 1), std::pair(1, 1), std::pair(2, 1)));
  EXPECT_THAT(servers_in(search(job_of("{threads: 2}"), hosts(), {}).best), ElementsAre(std::pair(0, 2), std::pair(1, 2), std::pair(2, 2)));
  EXPECT_THAT(servers_in(search(job_of("{servers: ['10.0.0.1:29500']}"), hosts(), {}).best), IsEmpty());
}

TEST(Serving, LeavesHostsThatServeFewerSamples) {
  const model::JobSpec job = job_of("{}");
  const profile::Profile idle = rows_of(1e-9, 1e-9), busy = rows_of(1e-9, 2e-6);
  const std::vector<std::int64_t> before = samples_in(search(job, hosts(), idle).best);
  const plan::Plan plan = search(job, hosts(), busy, {.serving = {0, 1, 1}}).best;
  EXPECT_THAT(servers_in(plan), ElementsAre(std::pair(1, 1), std::pair(2, 1)));
  const plan::Plan best = search(job, hosts(), busy).best;
  EXPECT_NO_THROW(plan::check(best, job, hosts()));
  EXPECT_EQ(best.cluster_fingerprint, hosts().fingerprint());
  const std::vector<std::int64_t> after = samples_in(best);
  EXPECT_EQ(std::accumulate(after.begin(), after.end(), std::int64_t{0}), 1024);
  // Whoever serves has a smaller share of the batch than where serving costs nothing.
  std::int64_t less = 0;
  for (const auto& [rank, threads] : servers_in(best))
    if (after[static_cast<std::size_t>(rank)] < before[static_cast<std::size_t>(rank)]) ++less;
  EXPECT_EQ(less > 0 || servers_in(best).size() == 3, true);
  EXPECT_GT(best.predicted->step, search(job, hosts(), idle).best.predicted->step);
}

TEST(Serving, RowsThatArePulledAheadCostLessOfAStep) {
  const profile::Profile profile = rows_of(2e-7, 2e-7);
  const auto of_rows = [&](const std::string& servers) {
    Seconds rows(0);
    for (const auto& [name, seconds] : search(job_of(servers), hosts(), profile, {.serving = {1, 0, 0}}).best.predicted->parts)
      if (name == "rows of tables") rows = seconds;
    return rows;
  };
  const Seconds synchronous = of_rows("{}"), ahead = of_rows("{consistency: asynchronous}");
  EXPECT_GT(synchronous, Seconds(0));
  EXPECT_LT(ahead, synchronous);
}

}  // namespace
}  // namespace tessera::search
