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

SearchOptions serving(std::vector<int> threads) {
  SearchOptions options;
  options.serving = std::move(threads);
  return options;
}

TEST(Serving, LeavesHostsThatServeFewerSamples) {
  const model::JobSpec job = job_of("{}");
  const plan::Plan free = search(job, hosts(), rows_of(1e-9, 1e-9)).best;
  const plan::Plan best = search(job, hosts(), rows_of(1e-9, 2e-6)).best;
  EXPECT_NO_THROW(plan::check(best, job, hosts()));
  EXPECT_EQ(best.cluster_fingerprint, hosts().fingerprint());
  const std::vector<std::int64_t> before = samples_in(free), after = samples_in(best);
  EXPECT_EQ(std::accumulate(after.begin(), after.end(), std::int64_t{0}), 1024);
  // Servers weigh most on the ranks that have them, or on all alike.
  std::int64_t fewer = 0;
  for (const auto& [rank, threads] : servers_in(best))
    fewer += before[static_cast<std::size_t>(rank)] - after[static_cast<std::size_t>(rank)];
  EXPECT_GE(fewer, 0);
  EXPECT_GT(best.predicted->step, free.predicted->step);
  // As many servers as were asked for.
  for (const std::vector<int>& threads : {std::vector{1, 1, 1}, std::vector{0, 1, 1}, std::vector{0, 1, 0}}) {
    const plan::Plan other = search(job, hosts(), rows_of(1e-9, 2e-6), serving(threads)).best;
    EXPECT_EQ(other.servers.size(), static_cast<std::size_t>(std::accumulate(threads.begin(), threads.end(), 0)));
  }
}

TEST(Serving, TheExplanationSaysThatRowsAreNotInItsMemory) {
  const auto explained = [](const std::string& servers) {
    const model::JobSpec job = job_of(servers);
    return explain(search(job, hosts(), rows_of(1e-9, 1e-9)), job.model, hosts());
  };
  const std::string words = "without the rows that the parameter servers hold";
  EXPECT_NE(explained("{}").find(words), std::string::npos);
  EXPECT_EQ(explained("{servers: [\"10.0.0.1:29500\"]}").find(words), std::string::npos);
}

TEST(Serving, RowsThatArePulledAheadCostLessOfAStep) {
  const profile::Profile profile = rows_of(2e-7, 2e-7);
  const auto of_rows = [&](const std::string& servers) {
    const plan::Plan plan = search(job_of(servers), hosts(), profile, serving({1, 0, 0})).best;
    for (const auto& [name, seconds] : plan.predicted->parts)
      if (name == "rows of tables") return seconds;
    return Seconds(0);
  };
  const Seconds synchronous = of_rows("{}"), ahead = of_rows("{consistency: asynchronous}");
  EXPECT_GT(synchronous, Seconds(0));
  EXPECT_LT(ahead, synchronous);
}

}  // namespace
}  // namespace tessera::search
