// What links that have changed make of the times of plans.
#include "train/link_drift.hpp"

#include <gmock/gmock.h>

#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;

cluster::ClusterSpec hosts(int nodes) {
  cluster::ClusterSpec out;
  cluster::ResourceGroup& group = out.groups.emplace_back();
  group.nodes = nodes;
  group.network = {.name = "lab", .bandwidth = BytesPerSecond(1e9), .latency = Seconds(0)};
  return out;
}

profile::CommSample pair(int a, int b, double seconds) {
  profile::CommSample out;
  out.operation = "send";
  out.link = profile::pair_link("lab", a, b);
  out.bandwidth = BytesPerSecond(static_cast<double>(profile::kRingPiece.value) / seconds);
  return out;
}

// One second between each two hosts but 0 and 1.
profile::Profile with_pairs(int nodes, double slow) {
  profile::Profile out;
  for (int a = 0; a < nodes; ++a)
    for (int b = a + 1; b < nodes; ++b) out.communication.push_back(pair(a, b, a == 0 && b == 1 ? slow : 1));
  return out;
}

plan::Plan on_hosts(plan::Plan plan) {
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) plan.ranks[rank].node = static_cast<int>(rank);
  return plan;
}

TEST(LinkDrift, ACollectiveWaitsForTheSlowestHopOfItsRing) {
  const auto job = tiny_job();
  const auto links = profile::HostLinks::of(with_pairs(4, 5), "lab", 4);
  plan::Plan plan = on_hosts(plan_of(job, {.dp = 4}));
  const auto drift = [&] { return drift_of(plan, job.model, *links, 0, 0.5); };
  EXPECT_DOUBLE_EQ(drift().collectives, 10);
  EXPECT_DOUBLE_EQ(drift().messages, 1);
  plan.stages.front().ranks = {0, 2, 1, 3};
  EXPECT_DOUBLE_EQ(drift().collectives, 2);
  EXPECT_DOUBLE_EQ(least_drift(*links, 0.5).collectives, 2);
}

// Stages of ranks 0, 1 and 2, 3: gradients cross the slow link. Of ranks 0, 2 and 1, 3: messages do.
TEST(LinkDrift, MessagesWaitForThePairsThatSendThem) {
  const auto job = tiny_job();
  const auto links = profile::HostLinks::of(with_pairs(4, 5), "lab", 4);
  plan::Plan plan = on_hosts(plan_of(job, {.dp = 2, .pp = 2}));
  Drift drift = drift_of(plan, job.model, *links, 0, 1);
  EXPECT_DOUBLE_EQ(drift.collectives, 5);
  EXPECT_DOUBLE_EQ(drift.messages, 1);
  plan.stages[0].ranks = {0, 2};
  plan.stages[1].ranks = {1, 3};
  drift = drift_of(plan, job.model, *links, 0, 1);
  EXPECT_DOUBLE_EQ(drift.collectives, 1);
  EXPECT_DOUBLE_EQ(drift.messages, 5);
}

TEST(LinkDrift, WhatAProfileSaysOfTheNetworkTakesAsManyTimesAsLong) {
  profile::Profile profile = with_pairs(4, 1);
  profile::CommSample reduce;
  reduce.operation = "all_reduce";
  reduce.link = "lab";
  reduce.ranks = 4;
  reduce.bandwidth = BytesPerSecond(1e9);
  reduce.points = {{Bytes(1000), {1, 0.9, 1.1}}, {Bytes(2000), {2, 1.9, 2.1}}};
  profile.communication.push_back(reduce);
  cluster::ClusterSpec cluster = hosts(4);
  const auto seconds = [&](const char* operation) {
    return profile::collective_time(profile, operation, Bytes(2000), 4, cluster.groups[0].network, profile::Medium::adapter).value;
  };
  const double gather = seconds("all_gather"), send = seconds("send");
  apply({.collectives = 3, .messages = 2}, 0, profile, cluster);
  EXPECT_DOUBLE_EQ(seconds("all_reduce"), 6);
  EXPECT_NEAR(seconds("all_gather"), 3 * gather, 1e-9 * gather);  // which nobody has measured
  EXPECT_NEAR(seconds("send"), 2 * send, 1e-9 * send);
  EXPECT_DOUBLE_EQ(measured_hop(profile, cluster.groups[0]), 1);  // pairs are as they are
}

TEST(LinkDrift, WithoutPairsAHopIsAMessageOnTheNetwork) {
  EXPECT_DOUBLE_EQ(measured_hop({}, hosts(4).groups[0]), static_cast<double>(profile::kRingPiece.value) / 1e9);
  EXPECT_DOUBLE_EQ(measured_hop(with_pairs(4, 5), hosts(4).groups[0]), 1);
  EXPECT_DOUBLE_EQ(measured_hop(with_pairs(3, 5), hosts(3).groups[0]), 5);  // there is one ring only
}

TEST(LinkDrift, SaysWhatHasChanged) {
  profile::Profile profile = with_pairs(4, 1);
  const cluster::ResourceGroup group = hosts(4).groups[0];
  EXPECT_EQ(take_links(with_pairs(4, 1.2).communication, group, profile), "all as before");
  EXPECT_DOUBLE_EQ(profile.communication.front().bandwidth.value, pair(0, 1, 1).bandwidth.value);
  EXPECT_EQ(take_links(with_pairs(4, 0.001).communication, group, profile),
            "8.39 Gbit/s between hosts 0 and 1 (0.01 before), the others as before");
  EXPECT_EQ(profile.communication.size(), 6u);
  EXPECT_EQ(profile.communication.front().link, "lab:0-1");
  profile::Profile none;
  EXPECT_THAT(take_links(with_pairs(4, 1).communication, group, none), HasSubstr("0.01 Gbit/s between hosts 2 and 3"));
  EXPECT_EQ(none.communication.size(), 6u);
  profile::Profile of_many = with_pairs(5, 1);
  std::vector<profile::CommSample> slow = of_many.communication;
  for (profile::CommSample& sample : slow) sample.bandwidth = sample.bandwidth / 2;
  EXPECT_THAT(take_links(slow, hosts(5).groups[0], of_many),
              HasSubstr(" between hosts 1 and 3 (0.01 before), others between 4 more pairs"));
}

}  // namespace
}  // namespace tessera::train
