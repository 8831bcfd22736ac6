#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/expect_error.hpp"
#include "cluster/cluster.hpp"

namespace tessera::cluster {
namespace {

ClusterSpec host(const std::string& name, const std::string& device, Bytes memory, double gigaflops = 100) {
  ResourceGroup cpu;
  cpu.name = "cpu";
  cpu.device = known_device(device);
  cpu.device.cores = 8;
  cpu.device.memory = memory;
  cpu.device.peak["fp32"] = FlopsPerSecond(gigaflops * 1e9);
  cpu.devices_per_node = 8;
  cpu.inside = known_link("shm");
  cpu.network = known_link("tcp-10g");
  ClusterSpec found;
  found.name = name;
  found.groups = {cpu};
  found.between = known_link("pcie4");
  return found;
}

constexpr Bytes kMemory(std::int64_t{64} << 30);

TEST(Join, HostsOfOneKindAreTheNodesOfOneGroup) {
  // Kernels keep something for themselves, and frequencies are measured.
  const Bytes less(kMemory.value - (1 << 20));
  const ClusterSpec cluster =
      joined({host("a", "cpu:zen4", kMemory, 110), host("b", "cpu:zen4", less, 100), host("c", "cpu:zen4", kMemory, 105)});
  ASSERT_EQ(cluster.groups.size(), 1U);
  EXPECT_EQ(cluster.groups[0].nodes, 3);
  EXPECT_EQ(cluster.groups[0].device.memory.value, less.value);
  EXPECT_EQ(cluster.groups[0].device.peak.at("fp32").value, 100e9);
  EXPECT_EQ(cluster.name, "3-hosts");
  // What is joined stands in a cluster file.
  EXPECT_EQ(read_cluster(ConfigNode::parse(to_yaml(cluster), "cluster.yaml")).fingerprint(), cluster.fingerprint());
}

TEST(Join, TheOrderOfTheHostsIsThatOfTheNodes) {
  const Bytes half(kMemory.value / 2);
  const ClusterSpec cluster =
      joined({host("a", "cpu:zen4", kMemory), host("b", "cpu:zen4", half), host("c", "cpu:zen4", half), host("d", "cpu:zen4", kMemory)});
  ASSERT_EQ(cluster.groups.size(), 3U);
  EXPECT_EQ(cluster.groups[0].nodes, 1);
  EXPECT_EQ(cluster.groups[1].nodes, 2);
  EXPECT_EQ(cluster.groups[2].nodes, 1);
  EXPECT_NE(cluster.groups[0].name, cluster.groups[2].name);
  EXPECT_EQ(cluster.between.name, "tcp-10g");
  read_cluster(ConfigNode::parse(to_yaml(cluster), "cluster.yaml"));
}

TEST(Join, AcceleratorsAreLeftOutAndCpusNeeded) {
  ClusterSpec both = host("a", "cpu:zen4", kMemory);
  ResourceGroup gpus = both.groups[0];
  gpus.name = "gpus";
  gpus.device = known_device("h100-sxm");
  both.groups.insert(both.groups.begin(), gpus);
  EXPECT_TRUE(joined({both}).groups.at(0).device.is_cpu());
  both.groups.pop_back();
  EXPECT_THAT(tessera::testing::error_of([&] { joined({both}); }).message(), ::testing::HasSubstr("host a has no CPUs"));
}

}  // namespace
}  // namespace tessera::cluster
