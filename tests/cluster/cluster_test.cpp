#include "cluster/cluster.hpp"

#include <gmock/gmock.h>
#include <rapidcheck.h>
#include <algorithm>
#include <set>

#include "base/expect_error.hpp"
#include "base/temporary_folder.hpp"

namespace tessera::cluster {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

constexpr const char* kTwoGroups =
    "name: mixed\n"
    "groups:\n"
    "  - {name: fast, device: h100-sxm, nodes: 2, devices_per_node: 8, inside: nvlink4, network: rdma-400g}\n"
    "  - name: slow\n"
    "    device: {name: mine, vendor: acme, peak: {fp32: 10 TFLOP/s}, memory: 24 GiB, memory_bandwidth: 300 GB/s}\n"
    "    nodes: 3\n"
    "    devices_per_node: 2\n"
    "    inside: {name: bus, bandwidth: 12 GB/s, latency: 9 us}\n"
    "    network: {name: net, bandwidth: 100 Gbit/s, latency: 0.05 ms, shared: true}\n"
    "between: tcp-100g\n";

ClusterSpec cluster_of(const std::string& yaml) { return read_cluster(ConfigNode::parse(yaml, "c.yaml")); }
std::string refusal(const std::string& yaml) {
  const Error error = error_of([&] { cluster_of(yaml); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_config);
  return error.what();
}

bool same(const Link& a, const Link& b) {
  return a.name == b.name && a.bandwidth == b.bandwidth && a.latency == b.latency && a.shared == b.shared;
}

bool same(const Device& a, const Device& b) {
  return a.name == b.name && a.vendor == b.vendor && a.peak == b.peak && a.memory == b.memory && a.memory_bandwidth == b.memory_bandwidth &&
         a.units == b.units && a.cores == b.cores;
}

bool same(const ClusterSpec& a, const ClusterSpec& b) {
  const auto same_group = [](const ResourceGroup& x, const ResourceGroup& y) {
    return x.name == y.name && same(x.device, y.device) && x.nodes == y.nodes && x.devices_per_node == y.devices_per_node &&
           same(x.inside, y.inside) && same(x.network, y.network) && x.adapters == y.adapters && x.nodes_per_domain == y.nodes_per_domain &&
           x.nodes_per_rack == y.nodes_per_rack && x.oversubscription == y.oversubscription && x.speeds == y.speeds &&
           x.devices_per_switch == y.devices_per_switch && same(x.uplink, y.uplink);
  };
  return a.name == b.name && same(a.between, b.between) &&
         std::equal(a.groups.begin(), a.groups.end(), b.groups.begin(), b.groups.end(), same_group);
}

TEST(Cluster, ReadsNamedAndDescribedDevices) {
  const ClusterSpec cluster = cluster_of(kTwoGroups);
  EXPECT_EQ(cluster.name, "mixed");
  EXPECT_EQ(cluster.device_count(), 2 * 8 + 3 * 2);
  EXPECT_EQ(cluster.groups[0].device.memory.value, 80LL << 30);
  EXPECT_DOUBLE_EQ(cluster.groups[0].network.bandwidth.value, 48e9);
  EXPECT_DOUBLE_EQ(cluster.groups[1].device.peak_of(model::Precision::f32).value, 10e12);
  EXPECT_DOUBLE_EQ(cluster.groups[1].network.bandwidth.value, 12.5e9);
  EXPECT_DOUBLE_EQ(cluster.groups[1].network.latency.value, 5e-5);
  EXPECT_TRUE(cluster.groups[1].network.shared);
  EXPECT_FALSE(cluster.groups[1].device.is_cpu());
}

TEST(Cluster, FindsTheLinkBetweenTwoPlaces) {
  const ClusterSpec cluster = cluster_of(kTwoGroups);
  EXPECT_EQ(link_between(cluster, 0, 1, 0, 1).name, "nvlink4");
  EXPECT_EQ(link_between(cluster, 0, 0, 0, 1).name, "rdma-400g");
  EXPECT_EQ(link_between(cluster, 0, 0, 1, 0).name, "tcp-100g");
}

TEST(Cluster, JoinsTheNodesOfADomainByTheInsideLink) {
  const ClusterSpec cluster = cluster_of(
      "groups:\n"
      "  - {name: nvl72, device: gb200, nodes: 36, devices_per_node: 4, inside: nvlink5, network: rdma-400g, adapters: 4, "
      "nodes_per_domain: 18,\n"
      "     rack: {nodes: 18, oversubscription: 2}, switch: {devices: 2, uplink: pcie5}}\n");
  const ResourceGroup& group = cluster.groups[0];
  EXPECT_EQ(group.domain(), 72);
  EXPECT_EQ(group.adapters, 4);
  EXPECT_EQ(group.nodes_per_rack, 18);
  EXPECT_DOUBLE_EQ(group.oversubscription, 2);
  EXPECT_EQ(group.devices_per_switch, 2);
  EXPECT_EQ(group.uplink.name, "pcie5");
  EXPECT_EQ(link_between(cluster, 0, 0, 0, 17).name, "nvlink5");
  EXPECT_EQ(link_between(cluster, 0, 17, 0, 18).name, "rdma-400g");
}

TEST(Cluster, RefusesARackThatGivesMoreThanItHas) {
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: v100-32, nodes: 4, network: rdma-100g, rack: {nodes: 2, oversubscription: 0.5}}\n"),
              HasSubstr("a factor of 1 or more"));
}

TEST(Cluster, KnowsWhatItsDevicesComputeIn) {
  for (const char* name : {"a100-40",    "a100-80",    "h100-sxm",    "h100-pcie", "h100-hbm2e", "h200",    "b200",    "b300",
                           "gb200",      "gb300",      "v100-16",     "p40",       "t4",         "l40s",    "rtx4090", "ascend910a",
                           "ascend910b", "ascend910c", "kunlun-r200", "tpu-v4",    "tpu-v5p",    "cpu:zen4"})
    EXPECT_EQ(known_device(name).name, name);
  const auto peak = [](const char* device, const char* precision) { return known_device(device).peak.at(precision).value; };
  EXPECT_DOUBLE_EQ(peak("v100-32", "fp16"), 125e12);
  EXPECT_FALSE(known_device("v100-32").peak.contains("bf16"));
  EXPECT_FALSE(known_device("a100-80").peak.contains("fp8"));
  EXPECT_DOUBLE_EQ(peak("h100-sxm", "fp8"), 1979e12);
  // Each step down in bits at least keeps the rate.
  for (const Device& device : known_devices()) {
    double last = 0;
    for (const char* precision : {"fp32", "tf32", "bf16", "fp8", "fp4"}) {
      const auto found = device.peak.find(precision);
      if (found == device.peak.end() || device.is_cpu()) continue;
      EXPECT_GE(found->second.value, last) << device.name << ' ' << precision;
      last = found->second.value;
    }
  }
}

TEST(Cluster, WritesWhatItReads) {
  const ClusterSpec cluster = cluster_of(kTwoGroups);
  EXPECT_TRUE(same(cluster, cluster_of(to_yaml(cluster)))) << to_yaml(cluster);
  const TemporaryFolder folder;
  EXPECT_TRUE(same(cluster, load_cluster(folder.write("cluster.yaml", to_yaml(cluster)))));
}

rc::Gen<std::string> any_name() {
  return rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab\"\\'#: {}[],&*!|>%@`\t\n-?~0."))));
}

Link any_link() {
  return {*any_name(), BytesPerSecond(1 + 1e12 * *rc::gen::map(rc::gen::inRange(0, 1'000'000), [](int n) { return n / 999'983.0; })),
          Seconds(*rc::gen::inRange(0, 1'000'000) / 7e9), *rc::gen::arbitrary<bool>()};
}

TEST(Cluster, AnyClusterReadsBackExactly) {
  EXPECT_TRUE(rc::check([] {
    ClusterSpec cluster;
    cluster.name = "c" + *any_name();
    const int groups = *rc::gen::inRange(1, 4);
    for (int i = 0; i < groups; ++i) {
      ResourceGroup group;
      group.name = "g" + *any_name();
      const bool cpu = *rc::gen::arbitrary<bool>();
      group.device.name = "d" + *any_name();
      group.device.vendor = cpu ? "cpu" : "x";
      group.device.peak["fp32"] = FlopsPerSecond(*rc::gen::inRange(1, 1'000'000'000) * 1234.567);
      if (*rc::gen::arbitrary<bool>()) group.device.peak["bf16"] = FlopsPerSecond(*rc::gen::inRange(1, 1000) * 1e12);
      group.device.memory = Bytes(*rc::gen::inRange<std::int64_t>(0, 1LL << 50));
      group.device.memory_bandwidth = BytesPerSecond(*rc::gen::inRange(1, 1'000'000) * 1.7e6);
      group.device.cores = cpu ? *rc::gen::inRange(1, 300) : 0;
      group.nodes = *rc::gen::inRange(1, 20);
      group.devices_per_node = *rc::gen::inRange(1, 100);
      if (cpu && group.nodes < 10)
        for (int node = 0; node < group.nodes; ++node) group.speeds.push_back(*rc::gen::inRange(1, 1000) / 7.0);
      group.inside = any_link();
      group.network = any_link();
      group.device.units = *rc::gen::inRange(0, 200);
      group.adapters = *rc::gen::inRange(1, 9);
      group.nodes_per_domain = *rc::gen::inRange(1, 20);
      if (*rc::gen::arbitrary<bool>()) {
        group.nodes_per_rack = *rc::gen::inRange(1, 64);
        group.oversubscription = 1 + *rc::gen::inRange(0, 1000) / 7.0;
      }
      if (*rc::gen::arbitrary<bool>()) {
        group.devices_per_switch = *rc::gen::inRange(1, 8);
        group.uplink = any_link();
      }
      cluster.groups.push_back(group);
    }
    cluster.between = any_link();
    const ClusterSpec back = cluster_of(to_yaml(cluster));
    if (!same(cluster, back)) RC_FAIL(to_yaml(cluster) + "became\n" + to_yaml(back));
    RC_ASSERT(to_yaml(back) == to_yaml(cluster));
    RC_ASSERT(back.fingerprint() == cluster.fingerprint());
  }));
}

TEST(Cluster, FingerprintsWhatPlansDependOn) {
  const ClusterSpec cluster = cluster_of(kTwoGroups);
  std::set<std::string> prints = {cluster.fingerprint()};
  const auto changed = [&](auto change) {
    ClusterSpec copy = cluster;
    change(copy);
    return copy.fingerprint();
  };
  EXPECT_TRUE(prints.insert(changed([](ClusterSpec& c) { c.groups[0].nodes = 3; })).second);
  EXPECT_TRUE(prints.insert(changed([](ClusterSpec& c) { c.groups[0].devices_per_node = 4; })).second);
  EXPECT_TRUE(prints.insert(changed([](ClusterSpec& c) { c.groups[0].device.memory = Bytes(40LL << 30); })).second);
  EXPECT_TRUE(prints.insert(changed([](ClusterSpec& c) { c.groups[1].network.bandwidth = BytesPerSecond(1e9); })).second);
  EXPECT_TRUE(prints.insert(changed([](ClusterSpec& c) { c.between = known_link("tcp-1g"); })).second);
  EXPECT_TRUE(prints.insert(changed([](ClusterSpec& c) { c.groups.pop_back(); })).second);
}

TEST(Cluster, FingerprintsIgnoreEstimatesAndNames) {
  const ClusterSpec cluster = cluster_of(kTwoGroups);
  ClusterSpec other = cluster;
  other.name = "renamed";
  other.groups[0].device.peak["fp32"] = FlopsPerSecond(1);
  other.groups[0].device.memory_bandwidth = BytesPerSecond(1);
  other.groups[0].device.memory += Bytes(1 << 20);
  EXPECT_EQ(other.fingerprint(), cluster.fingerprint());
}

TEST(Cluster, NamesTheLineOfWhatIsWrong) {
  EXPECT_THAT(refusal("groups: []\n"), HasSubstr("c.yaml:1:9: groups: a cluster needs at least one group"));
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: h100-smx}\n"),
              AllOf(HasSubstr("c.yaml:2:23"), HasSubstr("did you mean 'h100-sxm'?")));
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: t4, inside: nvlnk4, devices_per_node: 2}\n"), HasSubstr("did you mean 'nvlink4'?"));
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: t4, nods: 2}\n"), HasSubstr("did you mean 'nodes'?"));
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: t4, nodes: 0}\n"), HasSubstr("groups[0].nodes: found 0"));
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: t4, nodes: 99999999}\n"), HasSubstr("at most 1048576"));
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: t4, nodes: 2}\n"), HasSubstr("the network between nodes is missing"));
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: t4, devices_per_node: 2}\n"), HasSubstr("the link inside a node is missing"));
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: t4}\n  - {name: b, device: t4}\n"), HasSubstr("the link between groups is missing"));
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: 'cpu:zen4', cores: 1, nodes: 2, network: tcp-1g, speeds: [1]}\n"),
              HasSubstr("has 1 entries, and the group 2 nodes"));
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: t4, speeds: [1]}\n"), HasSubstr("are of CPU hosts"));
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: t4, cores: 2}\n"), HasSubstr("only CPU devices have cores"));
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: t4, network: {name: n, bandwidth: 0, latency: 1 us}}\n"),
              HasSubstr("a bandwidth above 0"));
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: t4, network: {name: n, bandwidth: 5 furlongs, latency: 1 us}}\n"),
              HasSubstr("expected a bandwidth such as 450 GB/s"));
  EXPECT_THAT(refusal("groups:\n  - {name: a, device: {name: d, vendor: v, peak: {fp64: 1}, memory: 1, memory_bandwidth: 1}}\n"),
              HasSubstr("unknown key 'fp64'"));
}

TEST(Cluster, HostsHaveTheSpeedsThatTheyAreGiven) {
  const ClusterSpec cluster = cluster_of(
      "groups:\n  - {name: a, device: 'cpu:zen4', cores: 1, nodes: 2, network: tcp-1g, speeds: [1, 0.5]}\n"
      "  - {name: b, device: 'cpu:zen4', cores: 1}\nbetween: tcp-1g\n");
  EXPECT_THAT(speeds_of_hosts(cluster), ::testing::ElementsAre(1, 0.5, 1));
  const ClusterSpec other = with_speeds(cluster, {2, 1, 0.25});
  EXPECT_EQ(other.groups[1].speed_of(0), 0.25);
  EXPECT_EQ(other.fingerprint(), cluster.fingerprint());
}

TEST(Cluster, SaysAllThatIsWrongAtOnce) {
  const std::string all = refusal(
      "groups:\n"
      "  - {name: a, device: h100-smx, nodes: 0}\n"
      "  - {nam: b, device: t4, inside: {name: l, bandwidth: 0}}\n"
      "betwen: tcp-1g\n");
  for (const char* one : {"c.yaml:2:23", "c.yaml:2:40", "c.yaml:3:6", "the key 'name' is missing", "c.yaml:3:55",
                          "the key 'latency' is missing", "c.yaml:4:1"})
    EXPECT_THAT(all, HasSubstr(one));
}

TEST(Device, WithoutAPrecisionSaysWhichItHas) {
  const Error error = error_of([] { known_device("t4").peak_of(model::Precision::bf16); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_STREQ(error.what(), "device t4 cannot compute in bf16; expected one of: fp16, fp32");
  EXPECT_FALSE(known_device("t4").has(model::Precision::bf16));
}

TEST(Devices, OfCpusShareTheirHost) {
  const ClusterSpec cluster = cluster_of(
      "name: host\nbetween: pcie4\ngroups:\n  - {name: cpus, device: 'cpu:zen4', cores: 2, memory: 8 GiB, inside: shm, network: tcp-10g}\n"
      "  - {name: gpus, device: v100-32, devices_per_node: 4, inside: nvlink2, network: tcp-10g}\n");
  const ResourceGroup& cpus = cluster.groups[0];
  const ResourceGroup& gpus = cluster.groups[1];
  EXPECT_TRUE(cpus.device.shares_host());
  EXPECT_TRUE(cpus.device.trainable());
  EXPECT_EQ(cpus.most_ranks_per_node(), 2 * 32);
  EXPECT_EQ(cpus.device.ranks_text(1), "1 worker on cpu:zen4");
  EXPECT_EQ(cpus.device.ranks_text(4), "4 workers on cpu:zen4");
  EXPECT_FALSE(gpus.device.shares_host());
  EXPECT_TRUE(gpus.device.trainable());
  EXPECT_EQ(gpus.most_ranks_per_node(), 4);
  EXPECT_EQ(gpus.device.ranks_text(8), "8 × v100-32");
}

TEST(Devices, OfCpusAreLeftOutInWhatAcceleratorsAccelerate) {
  ClusterSpec cluster = cluster_of(
      "name: host\nbetween: pcie4\ngroups:\n  - {name: cpus, device: 'cpu:zen4', cores: 2, memory: 8 GiB, inside: shm, network: tcp-10g}\n"
      "  - {name: gpus, device: v100-32, devices_per_node: 4, inside: nvlink2, network: tcp-10g}\n");
  const auto left_out = [&](model::Precision precision) { return is_left_out(cluster, cluster.groups[0], precision); };
  EXPECT_TRUE(left_out(model::Precision::f16));
  EXPECT_FALSE(left_out(model::Precision::bf16));  // a V100 has none
  EXPECT_FALSE(left_out(model::Precision::f32));
  EXPECT_FALSE(is_left_out(cluster, cluster.groups[1], model::Precision::f16));
  EXPECT_EQ(fast_precision(cluster), model::Precision::f16);
  cluster.groups[1].device = known_device("a100-80");
  EXPECT_EQ(fast_precision(cluster), model::Precision::bf16);
  cluster.groups.pop_back();
  EXPECT_FALSE(fast_precision(cluster).has_value());
  EXPECT_FALSE(left_out(model::Precision::f16));
}

TEST(KnownDevices, HaveDistinctNamesAndSensibleFigures) {
  std::set<std::string> names;
  EXPECT_GT(known_devices().size(), 20u);
  for (const Device& device : known_devices()) {
    EXPECT_TRUE(names.insert(device.name).second) << device.name;
    EXPECT_FALSE(device.peak.empty()) << device.name;
    for (const auto& [precision, rate] : device.peak) EXPECT_GT(rate.value, 1e9) << device.name << ' ' << precision;
    EXPECT_EQ(device.units > 0, !device.is_cpu()) << device.name;
    EXPECT_GT(device.memory.value, 1LL << 30) << device.name;
    EXPECT_GT(device.memory_bandwidth.value, 1e9) << device.name;
    EXPECT_EQ(device.cores > 0, device.is_cpu()) << device.name;
  }
  for (const char* name :
       {"a100-40", "a100-80", "h100-sxm", "h200", "b200", "gb200", "v100-32", "p40", "t4", "l40s", "rtx4090", "ascend910a", "ascend910b"})
    EXPECT_TRUE(names.contains(name)) << name;
  std::set<std::string> links;
  for (const Link& link : known_links()) {
    EXPECT_TRUE(links.insert(link.name).second) << link.name;
    EXPECT_GT(link.bandwidth.value, 1e8) << link.name;
    EXPECT_GT(link.latency.value, 0) << link.name;
  }
}

TEST(KnownDevices, AnUnknownNameGetsTheNearest) {
  EXPECT_THAT(error_of([] { known_device("a100-8O"); }).hint(), HasSubstr("did you mean 'a100-80'?"));
  EXPECT_EQ(error_of([] { known_link("zzzzzzzzzz"); }).code(), ErrorCode::not_found);
}

}  // namespace
}  // namespace tessera::cluster
