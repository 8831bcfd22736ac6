#include "cluster/host.hpp"

#include <gmock/gmock.h>

#include "base/expect_error.hpp"
#include "base/temporary_folder.hpp"

namespace tessera::cluster {
namespace {

using model::ClusterChoice;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string cpuinfo(const std::string& vendor, int family, int model, const std::string& flags, const std::string& name = "CPU @ 2.00GHz") {
  return text("processor\t: 0\nvendor_id\t: ", vendor, "\ncpu family\t: ", family, "\nmodel\t\t: ", model, "\nmodel name\t: ", name,
              "\nstepping\t: 1\ncpu MHz\t\t: 3100.5\nflags\t\t: fpu ", flags, "\n\nprocessor\t: 1\n");
}

double giga(const Device& device, model::Precision precision) { return device.peak_of(precision).value / 1e9; }

TEST(Host, TellsCpuClassesByFamilyAndInstructionSet) {
  const auto named = [](const std::string& info) { return cpu_from(info, 4, Bytes(1)).name; };
  EXPECT_EQ(named(cpuinfo("AuthenticAMD", 26, 2, "avx2 avx512f avx512_bf16")), "cpu:zen5");
  EXPECT_EQ(named(cpuinfo("AuthenticAMD", 25, 17, "avx2 avx512f avx512_bf16")), "cpu:zen4");
  EXPECT_EQ(named(cpuinfo("AuthenticAMD", 25, 1, "avx2")), "cpu:zen3");
  EXPECT_EQ(named(cpuinfo("AuthenticAMD", 23, 49, "avx2")), "cpu:zen2");
  EXPECT_EQ(named(cpuinfo("GenuineIntel", 6, 143, "avx2 avx512f avx512_bf16 amx_bf16")), "cpu:sapphire-rapids");
  EXPECT_EQ(named(cpuinfo("GenuineIntel", 6, 106, "avx2 avx512f")), "cpu:ice-lake");
  EXPECT_EQ(named(cpuinfo("GenuineIntel", 6, 158, "avx2")), "cpu:avx2");
  EXPECT_EQ(named(cpuinfo("GenuineIntel", 6, 15, "sse2")), "cpu:generic");
  EXPECT_EQ(named("processor : 0\nFeatures : fp asimd\nCPU architecture: 8\n"), "cpu:neoverse");
  EXPECT_EQ(named(""), "cpu:generic");
}

TEST(Host, EachCpuClassIsAKnownDevice) {
  for (const auto& info : {cpuinfo("AuthenticAMD", 26, 2, "avx2 avx512f"), cpuinfo("AuthenticAMD", 25, 1, "avx2"),
                           cpuinfo("GenuineIntel", 6, 85, "avx2 avx512f"), cpuinfo("GenuineIntel", 6, 173, "avx2 avx512f amx_bf16"),
                           cpuinfo("Other", 6, 1, "avx2 avx512f"), std::string()}) {
    const std::string name = cpu_from(info, 4, Bytes(1)).name;
    EXPECT_EQ(known_device(name).name, name);
  }
}

TEST(Host, TakesPeaksFromTheVectorsAndTheNominalFrequency) {
  const Device zen4 = cpu_from(cpuinfo("AuthenticAMD", 25, 17, "avx2 avx512f avx512_bf16"), 8, Bytes(5));
  EXPECT_DOUBLE_EQ(giga(zen4, model::Precision::f32), 32 * 2.0);
  EXPECT_DOUBLE_EQ(giga(zen4, model::Precision::bf16), 64 * 2.0);
  EXPECT_EQ(zen4.cores, 8);
  EXPECT_EQ(zen4.memory.value, 5);
  EXPECT_TRUE(zen4.is_cpu());
  const Device sapphire = cpu_from(cpuinfo("GenuineIntel", 6, 143, "avx2 avx512f avx512_bf16 amx_bf16"), 8, Bytes(5));
  EXPECT_DOUBLE_EQ(giga(sapphire, model::Precision::bf16), 1024 * 2.0);
  // Without a nominal frequency in the name, the momentary one.
  EXPECT_DOUBLE_EQ(giga(cpu_from(cpuinfo("AuthenticAMD", 25, 1, "avx2", "EPYC"), 1, Bytes(1)), model::Precision::f32), 32 * 3.1005);
}

TEST(Host, BelievesFlagsThatAHypervisorHides) {
  const Device hidden = cpu_from(cpuinfo("GenuineIntel", 6, 143, "avx2 avx512f"), 8, Bytes(1));
  EXPECT_DOUBLE_EQ(giga(hidden, model::Precision::bf16), 32 * 2.0);
  EXPECT_DOUBLE_EQ(giga(cpu_from(cpuinfo("GenuineIntel", 6, 143, "avx2"), 8, Bytes(1)), model::Precision::f32), 32 * 2.0);
  EXPECT_DOUBLE_EQ(giga(cpu_from(cpuinfo("AuthenticAMD", 26, 2, "avx2 avx512f avx_vnni"), 8, Bytes(1)), model::Precision::bf16), 32 * 2.0);
}

TEST(Host, MemoryIsTheSmallerOfHostAndControlGroup) {
  const std::string meminfo = "MemTotal:       1048576 kB\nMemFree:  5 kB\n";
  EXPECT_EQ(memory_from(meminfo, "").value, 1LL << 30);
  EXPECT_EQ(memory_from(meminfo, "max\n").value, 1LL << 30);
  EXPECT_EQ(memory_from(meminfo, "536870912\n").value, 1LL << 29);
  EXPECT_EQ(memory_from(meminfo, "9223372036854771712\n").value, 1LL << 30);
}

TEST(Host, CoresAreTheSmallerOfHostAndQuota) {
  EXPECT_EQ(cores_from(8, ""), 8);
  EXPECT_EQ(cores_from(8, "max 100000\n"), 8);
  EXPECT_EQ(cores_from(8, "250000 100000\n"), 3);
  EXPECT_EQ(cores_from(8, "50000 100000"), 1);
  EXPECT_EQ(cores_from(2, "900000 100000"), 2);
  EXPECT_EQ(cores_from(8, "-1 100000"), 8);
  EXPECT_EQ(cores_from(0, "garbage"), 1);
}

TEST(Host, FindsTheFoldersOfItsControlGroups) {
  EXPECT_THAT(group_folders("0::/a/b\n", "cpu"), ElementsAre("/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"));
  EXPECT_THAT(group_folders("0::/\n", "memory"), ElementsAre("/sys/fs/cgroup"));
  EXPECT_THAT(group_folders("4:memory:/x\n3:cpu,cpuacct:/y\n1:name=systemd:/z\n", "memory"),
              ElementsAre("/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/memory"));
  EXPECT_THAT(group_folders("3:cpu,cpuacct:/\n2:cpuset:/s\n", "cpu"), ElementsAre("/sys/fs/cgroup/cpu,cpuacct"));
  EXPECT_THAT(group_folders("nonsense\n\n", "cpu"), IsEmpty());
}

TEST(Host, FindsTheAdaptersThatAreUp) {
  const TemporaryFolder folder;
  const auto port = [&](const std::string& device, const std::string& state, const std::string& rate) {
    folder.write("infiniband/" + device + "/ports/1/state", state + "\n");
    folder.write("infiniband/" + device + "/ports/1/rate", rate + "\n");
  };
  const auto interface = [&](const std::string& name, const std::string& state, const std::string& speed, bool physical) {
    folder.write("net/" + name + "/operstate", state + "\n");
    folder.write("net/" + name + "/speed", speed + "\n");
    if (physical) folder.write("net/" + name + "/device/vendor", "0x15b3\n");
  };
  const auto network = [&] { return network_of(network_adapters(folder.path())); };
  // Nothing there, or nothing that says its rate.
  interface("eth0", "up", "-1", true);
  interface("docker0", "up", "100000", false);
  EXPECT_EQ(network().link.name, "tcp-10g");
  interface("eth1", "up", "25000", true);
  interface("eth2", "down", "100000", true);
  EXPECT_EQ(network().link.name, "tcp-25g");
  interface("eth3", "up", "40000", true);
  EXPECT_EQ(network().link.name, "tcp-40g");
  EXPECT_NEAR(network().link.bandwidth.value, 40e9 / 8 * 0.93, 1);
  port("mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)");
  port("mlx5_1", "4: ACTIVE", "400 Gb/sec (4X NDR)");
  port("mlx5_2", "1: DOWN", "800 Gb/sec (4X XDR)");
  port("mlx5_3", "4: ACTIVE", "100 Gb/sec (4X EDR)");
  EXPECT_EQ(network().link.name, "rdma-400g");
  EXPECT_EQ(network().adapters, 2);
}

TEST(Host, RecognizesWhatDriversCallTheirDevices) {
  const auto recognized = [](const std::string& name) {
    const auto device = recognize({name, Bytes(7), 0});
    return device ? device->name : std::string("-");
  };
  EXPECT_EQ(recognized("NVIDIA H100 80GB HBM3"), "h100-sxm");
  EXPECT_EQ(recognized("NVIDIA H100 PCIe"), "h100-pcie");
  EXPECT_EQ(recognized("NVIDIA H200"), "h200");
  EXPECT_EQ(recognized("NVIDIA B200"), "b200");
  EXPECT_EQ(recognized("NVIDIA GB200"), "gb200");
  EXPECT_EQ(recognized("NVIDIA B300 SXM6 AC"), "b300");
  EXPECT_EQ(recognized("NVIDIA GB300"), "gb300");
  EXPECT_EQ(recognized("NVIDIA GH200 480GB"), "gh200");
  EXPECT_EQ(recognized("NVIDIA H800"), "h800");
  EXPECT_EQ(recognized("NVIDIA H20"), "h20");
  EXPECT_EQ(recognized("NVIDIA A800-SXM4-80GB"), "a800");
  EXPECT_EQ(recognized("NVIDIA A100-SXM4-40GB"), "a100-40");
  EXPECT_EQ(recognized("NVIDIA A100-SXM4-80GB"), "a100-80");
  EXPECT_EQ(recognized("NVIDIA A100 80GB PCIe"), "a100-80");
  EXPECT_EQ(recognized("Tesla V100-SXM2-32GB"), "v100-32");
  EXPECT_EQ(recognized("Tesla V100-PCIE-16GB"), "v100-16");
  EXPECT_EQ(recognized("Tesla T4"), "t4");
  EXPECT_EQ(recognized("NVIDIA T400"), "-");
  EXPECT_EQ(recognized("NVIDIA L4"), "l4");
  EXPECT_EQ(recognized("NVIDIA L40S"), "l40s");
  EXPECT_EQ(recognized("NVIDIA L40"), "-");
  EXPECT_EQ(recognized("NVIDIA A10"), "a10");
  EXPECT_EQ(recognized("NVIDIA GeForce RTX 4090"), "rtx4090");
  EXPECT_EQ(recognized("Quadro K600"), "-");
  EXPECT_EQ(recognize({"NVIDIA H200", Bytes(7), 0})->memory.value, 7);
}

TEST(Host, LinksDevicesByNvlinkOnlyWhereLinksAreActive) {
  EXPECT_EQ(link_inside({"NVIDIA H200", Bytes(1), 18}, known_device("h200")).name, "nvlink4");
  EXPECT_EQ(link_inside({"NVIDIA H200", Bytes(1), 0}, known_device("h200")).name, "pcie4");
  EXPECT_EQ(link_inside({"A100", Bytes(1), 12}, known_device("a100-80")).name, "nvlink3");
  EXPECT_EQ(link_inside({"NVIDIA GB200", Bytes(1), 18}, known_device("gb200")).name, "nvlink5");
}

TEST(Discovery, DescribesThisHostTheSameTwice) {
  const ClusterSpec first = discover_host();
  ASSERT_FALSE(first.groups.empty());
  const ResourceGroup& cpu = first.groups.front();
  EXPECT_TRUE(cpu.device.is_cpu());
  EXPECT_GE(cpu.device.cores, 1);
  EXPECT_EQ(cpu.devices_per_node, cpu.device.cores);
  EXPECT_GT(cpu.device.memory.value, 1 << 20);
  EXPECT_EQ(cpu.inside.name, "shm");
  EXPECT_EQ(first.fingerprint(), discover_host().fingerprint());
  EXPECT_EQ(read_cluster(ConfigNode::parse(to_yaml(first), "c.yaml")).fingerprint(), first.fingerprint());
}

ClusterChoice choice(ClusterChoice::Kind kind, int devices) {
  ClusterChoice out;
  out.kind = kind;
  out.devices = devices;
  out.where = {"t.yaml", 4, 10, -1, {}};
  return out;
}

TEST(Resolve, LocalIsThisHostWithSoManyWorkers) {
  const ClusterSpec cluster = resolve(choice(ClusterChoice::Kind::local, 3));
  ASSERT_EQ(cluster.groups.size(), 1u);
  EXPECT_EQ(cluster.groups[0].devices_per_node, 3);
  EXPECT_EQ(cluster.device_count(), 3);
  EXPECT_EQ(cluster.fingerprint(), resolve(choice(ClusterChoice::Kind::local, 2)).fingerprint());
}

TEST(Resolve, RefusesWorkersWithoutNumberOnFewCores) {
  const Error error = error_of([] { resolve(choice(ClusterChoice::Kind::local, 1 << 20)); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_config);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("t.yaml:4:10"), HasSubstr("nearest: ")));
}

TEST(Resolve, LabHostsShareThisMachine) {
  ClusterChoice lab = choice(ClusterChoice::Kind::lab, 4);
  lab.gbit = 2;
  lab.cpu = 0.5;
  const ClusterSpec cluster = resolve(lab);
  ASSERT_EQ(cluster.groups.size(), 1u);
  const ResourceGroup& group = cluster.groups[0];
  const Device here = discover_host().groups[0].device;
  EXPECT_EQ(group.nodes, 4);
  EXPECT_EQ(group.devices_per_node, 1);
  EXPECT_EQ(group.device.cores, 1);
  EXPECT_DOUBLE_EQ(group.device.peak_of(model::Precision::f32).value, here.peak_of(model::Precision::f32).value / 2);
  EXPECT_EQ(group.device.memory.value, here.memory.value / 4);
  EXPECT_NEAR(group.network.bandwidth.value, 0.25e9, 0.02e9);
}

TEST(Resolve, AFileIsReadAndItsErrorsNameIt) {
  const TemporaryFolder folder;
  ClusterChoice file = choice(ClusterChoice::Kind::file, 0);
  file.file = folder.write("c.yaml", "groups:\n  - {name: a, device: h200, devices_per_node: 8, inside: nvlink4}\n");
  EXPECT_EQ(resolve(file).device_count(), 8);
  file.file = folder / "absent.yaml";
  EXPECT_EQ(error_of([&] { resolve(file); }).code(), ErrorCode::not_found);
}

TEST(Resolve, AutoIsTheHost) { EXPECT_EQ(resolve(choice(ClusterChoice::Kind::automatic, 0)).fingerprint(), discover_host().fingerprint()); }

}  // namespace
}  // namespace tessera::cluster
