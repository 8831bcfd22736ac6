#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/cluster.hpp"

namespace tessera::cluster {
namespace {

using testing::HasSubstr;

ClusterSpec two_groups() {
  return read_cluster(ConfigNode::parse(R"(name: two
groups:
  - {name: gpu, device: a100-80, nodes: 2, devices_per_node: 8, inside: nvlink3, network: rdma-200g}
  - {name: cpu, device: 'cpu:zen4', cores: 8, memory: 64 GiB, inside: shm, network: tcp-10g}
between: tcp-25g
)",
                                        "cluster.yaml"));
}

std::string refusal(const std::string& setting) {
  try {
    with_overrides(two_groups(), {setting});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_config) << error.what();
    return error.what();
  }
  ADD_FAILURE() << setting << " was not refused";
  return {};
}

TEST(Override, NoneChangesNothing) { EXPECT_EQ(to_yaml(with_overrides(two_groups(), {})), to_yaml(two_groups())); }

TEST(Override, NamesAGroupByIndexOrByName) {
  EXPECT_EQ(with_overrides(two_groups(), {"cluster.groups.0.nodes=4"}).groups[0].nodes, 4);
  const ClusterSpec named = with_overrides(two_groups(), {"cluster.groups.cpu.memory=32 GiB"});
  EXPECT_EQ(named.groups[1].device.memory, Bytes(std::int64_t{32} << 30));
  EXPECT_EQ(named.groups[0].device.memory, two_groups().groups[0].device.memory);
}

TEST(Override, AGroupsKeyAloneIsSetInAllGroups) {
  const ClusterSpec changed = with_overrides(two_groups(), {"cluster.nodes=3"});
  EXPECT_EQ(changed.groups[0].nodes, 3);
  EXPECT_EQ(changed.groups[1].nodes, 3);
}

TEST(Override, AFactorMultipliesWhatIsThere) {
  const ClusterSpec before = two_groups();
  const ClusterSpec after = with_overrides(before, {"cluster.nodes=x2", "cluster.memory=x0.5", "cluster.link=x2"});
  for (std::size_t g = 0; g < before.groups.size(); ++g) {
    EXPECT_EQ(after.groups[g].nodes, 2 * before.groups[g].nodes);
    EXPECT_EQ(after.groups[g].device.memory.value, before.groups[g].device.memory.value / 2);
    EXPECT_DOUBLE_EQ(after.groups[g].network.bandwidth.value, 2 * before.groups[g].network.bandwidth.value);
    EXPECT_EQ(after.groups[g].inside.bandwidth, before.groups[g].inside.bandwidth);
  }
  EXPECT_DOUBLE_EQ(after.between.bandwidth.value, 2 * before.between.bandwidth.value);
}

TEST(Override, ALinkThatChangesTakesAnotherName) {
  const ClusterSpec changed = with_overrides(two_groups(), {"cluster.groups.gpu.network.bandwidth=100 Gbit/s"});
  EXPECT_NE(changed.groups[0].network.name, "rdma-200g");
  EXPECT_EQ(changed.groups[0].inside.name, "nvlink3");
  EXPECT_EQ(with_overrides(two_groups(), {"cluster.link=rdma-400g"}).between.name, "rdma-400g");
}

TEST(Override, MoreCoresHoldMoreWorkers) {
  EXPECT_EQ(with_overrides(two_groups(), {"cluster.groups.cpu.cores=x2"}).groups[1].devices_per_node, 16);
}

TEST(Override, WhatIsWrongIsAnsweredWithTheNearestName) {
  EXPECT_THAT(refusal("cluster.grups.0.nodes=4"), HasSubstr("did you mean 'groups'?"));
  EXPECT_THAT(refusal("cluster.nods=4"), HasSubstr("did you mean 'nodes'?"));
  EXPECT_THAT(refusal("cluster.groups.gpus.nodes=4"), HasSubstr("did you mean 'gpu'?"));
  EXPECT_THAT(refusal("cluster.link=tcp-11g"), HasSubstr("did you mean 'tcp-10g'?"));
  EXPECT_THAT(refusal("cluster.groups.0.nodes=two"), HasSubstr("found 'two'; expected a whole number"));
  EXPECT_THAT(refusal("cluster.nodes=x1.3"), HasSubstr("whole number"));
  EXPECT_THAT(refusal("cluster.name=x2"), HasSubstr("no number to multiply"));
  EXPECT_THAT(refusal("cluster.nodes"), HasSubstr("no '='"));
}

TEST(Override, LocalAndLabBelongToTheTrainYaml) {
  EXPECT_TRUE(is_cluster_override("cluster.nodes=2"));
  EXPECT_FALSE(is_cluster_override("cluster.local.devices=2"));
  EXPECT_FALSE(is_cluster_override("cluster={lab: {hosts: 2}}"));
  EXPECT_FALSE(is_cluster_override("train.steps=2"));
}

}  // namespace
}  // namespace tessera::cluster
