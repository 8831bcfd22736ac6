// Figures from the vendors' public data sheets: dense rates (no structured sparsity), memory as sold. Of devices with several
// dies (gb200, mi250x) one entry is what the driver shows as one device (gb200) or one board (mi250x).
#include "cluster/cluster.hpp"

namespace tessera::cluster {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;

Bytes gibibytes(std::int64_t count) { return Bytes(count << 30); }

Device accelerator(const char* name, const char* vendor, double fp32_tera, double bf16_tera, std::int64_t memory_gib, double bandwidth_giga) {
  Device device;
  device.name = name;
  device.vendor = vendor;
  device.peak["fp32"] = FlopsPerSecond(fp32_tera * kTera);
  if (bf16_tera > 0) device.peak["bf16"] = FlopsPerSecond(bf16_tera * kTera);
  device.memory = gibibytes(memory_gib);
  device.memory_bandwidth = BytesPerSecond(bandwidth_giga * kGiga);
  return device;
}

// Peaks of one core at its usual all-core frequency; memory and its bandwidth of a typical one-socket server.
Device cpu(const char* name, double fp32_giga, double bf16_giga, int cores, std::int64_t memory_gib, double bandwidth_giga) {
  Device device = accelerator(name, "cpu", fp32_giga / 1e3, bf16_giga / 1e3, memory_gib, bandwidth_giga);
  device.cores = cores;
  return device;
}

template <typename Item>
Item find(const std::vector<Item>& items, const std::string& name, const char* what) {
  std::vector<std::string> names;
  for (const Item& item : items) {
    if (item.name == name) return item;
    names.push_back(item.name);
  }
  const auto guess = nearest(name, names);
  throw Error(ErrorCode::not_found, text("no ", what, " is known as '", name, "'"), {}, "a name from `tessera cluster list`",
              guess ? "did you mean '" + *guess + "'?" : std::string());
}

}  // namespace

const std::vector<Device>& known_devices() {
  // fp32: of the vector units (TF32 is not fp32). V100, P40 and T4 have no bf16.
  static const std::vector<Device> devices = {
      accelerator("gb200", "nvidia", 80, 2500, 186, 8000),
      accelerator("b200", "nvidia", 80, 2250, 180, 8000),
      accelerator("h200", "nvidia", 67, 989, 141, 4800),
      accelerator("h100-sxm", "nvidia", 67, 989, 80, 3350),
      accelerator("h100-pcie", "nvidia", 51, 756, 80, 2000),
      accelerator("a100-80", "nvidia", 19.5, 312, 80, 2039),
      accelerator("a100-40", "nvidia", 19.5, 312, 40, 1555),
      accelerator("v100-32", "nvidia", 15.7, 0, 32, 900),
      accelerator("v100-16", "nvidia", 15.7, 0, 16, 900),
      accelerator("p40", "nvidia", 11.8, 0, 24, 346),
      accelerator("t4", "nvidia", 8.1, 0, 16, 320),
      accelerator("a10", "nvidia", 31.2, 125, 24, 600),
      accelerator("l4", "nvidia", 30.3, 121, 24, 300),
      accelerator("l40s", "nvidia", 91.6, 362, 48, 864),
      accelerator("rtx3090", "nvidia", 35.6, 71, 24, 936),
      accelerator("rtx4090", "nvidia", 82.6, 165, 24, 1008),
      accelerator("rtx5090", "nvidia", 104.8, 209.5, 32, 1792),
      accelerator("mi250x", "amd", 47.9, 383, 128, 3277),
      accelerator("mi300x", "amd", 163.4, 1307, 192, 5300),
      accelerator("ascend910a", "huawei", 16, 0, 32, 1200),
      accelerator("ascend910b", "huawei", 94, 376, 64, 1600),
      cpu("cpu:zen5", 218, 435, 64, 384, 460),
      cpu("cpu:zen4", 102, 205, 64, 384, 460),
      cpu("cpu:zen3", 96, 48, 64, 256, 204),
      cpu("cpu:zen2", 90, 45, 64, 256, 204),
      cpu("cpu:granite-rapids", 166, 2650, 96, 768, 614),
      cpu("cpu:sapphire-rapids", 166, 2650, 56, 512, 307),
      cpu("cpu:ice-lake", 166, 83, 40, 256, 204),
      cpu("cpu:skylake", 147, 74, 28, 192, 128),
      cpu("cpu:avx512", 160, 80, 32, 256, 150),
      cpu("cpu:avx2", 80, 40, 16, 64, 60),
      cpu("cpu:neoverse", 83, 166, 64, 256, 200),
      cpu("cpu:generic", 20, 10, 8, 16, 25)};
  return devices;
}

Device known_device(const std::string& name) { return find(known_devices(), name, "device"); }

const std::vector<Link>& known_links() {
  // Per direction; for networks of one adapter, with what protocols leave of the line rate.
  static const std::vector<Link> links = {
      {"nvlink5", BytesPerSecond(900e9), Seconds(4e-6), false}, {"nvlink4", BytesPerSecond(450e9), Seconds(4e-6), false},
      {"nvlink3", BytesPerSecond(300e9), Seconds(4e-6), false}, {"nvlink2", BytesPerSecond(150e9), Seconds(5e-6), false},
      {"pcie5", BytesPerSecond(56e9), Seconds(8e-6), false},    {"pcie4", BytesPerSecond(26e9), Seconds(8e-6), false},
      {"pcie3", BytesPerSecond(12e9), Seconds(8e-6), false},    {"hccs", BytesPerSecond(28e9), Seconds(8e-6), false},
      {"rdma-400g", BytesPerSecond(48e9), Seconds(6e-6), true}, {"rdma-200g", BytesPerSecond(24e9), Seconds(6e-6), true},
      {"rdma-100g", BytesPerSecond(12e9), Seconds(6e-6), true}, {"rdma-25g", BytesPerSecond(3e9), Seconds(6e-6), true},
      {"tcp-100g", BytesPerSecond(10e9), Seconds(30e-6), true}, {"tcp-25g", BytesPerSecond(2.9e9), Seconds(30e-6), true},
      {"tcp-10g", BytesPerSecond(1.17e9), Seconds(40e-6), true}, {"tcp-1g", BytesPerSecond(117e6), Seconds(60e-6), true},
      {"shm", BytesPerSecond(5e9), Seconds(8e-6), true}};
  return links;
}

Link known_link(const std::string& name) { return find(known_links(), name, "link"); }

}  // namespace tessera::cluster
