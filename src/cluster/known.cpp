// Figures from the vendors' public data sheets: dense rates (no structured sparsity), memory as sold. Of devices with several
// dies (gb200, mi250x) one entry is what the driver shows as one device (gb200) or one board (mi250x).
#include "cluster/cluster.hpp"

namespace tessera::cluster {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;

Bytes gibibytes(std::int64_t count) { return Bytes(count << 30); }

// Dense rates in TFLOP/s; 0: the device has no units for it.
struct Rates {
  double fp32 = 0;  // of the vector units
  double tf32 = 0;
  double fp16 = 0;
  double bf16 = 0;
  double fp8 = 0;
  double fp4 = 0;
};

Device accelerator(const char* name, const char* vendor, const Rates& rates, std::int64_t memory_gib, double bandwidth_giga, int units) {
  Device device;
  device.name = name;
  device.vendor = vendor;
  const std::pair<const char*, double> peaks[] = {{"fp32", rates.fp32}, {"tf32", rates.tf32}, {"fp16", rates.fp16},
                                                  {"bf16", rates.bf16}, {"fp8", rates.fp8},   {"fp4", rates.fp4}};
  for (const auto& [precision, tera] : peaks)
    if (tera > 0) device.peak[precision] = FlopsPerSecond(tera * kTera);
  device.memory = gibibytes(memory_gib);
  device.memory_bandwidth = BytesPerSecond(bandwidth_giga * kGiga);
  device.units = units;
  return device;
}

// Peaks of one core at its usual all-core frequency; memory and its bandwidth of a typical one-socket server.
Device cpu(const char* name, double fp32_giga, double bf16_giga, int cores, std::int64_t memory_gib, double bandwidth_giga) {
  Device device = accelerator(name, "cpu", {.fp32 = fp32_giga / 1e3, .bf16 = bf16_giga / 1e3}, memory_gib, bandwidth_giga, 0);
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
  // V100, P40 and T4 have no bf16.
  static const std::vector<Device> devices = {accelerator("gb300", "nvidia", {80, 1250, 2500, 2500, 5000, 15000}, 268, 8000, 148),
                                              accelerator("gb200", "nvidia", {80, 1250, 2500, 2500, 5000, 10000}, 186, 8000, 148),
                                              accelerator("b300", "nvidia", {80, 1125, 2250, 2250, 4500, 13500}, 268, 8000, 148),
                                              accelerator("b200", "nvidia", {80, 1125, 2250, 2250, 4500, 9000}, 180, 8000, 148),
                                              accelerator("h200", "nvidia", {67, 494, 989, 989, 1979, 0}, 141, 4800, 132),
                                              accelerator("gh200", "nvidia", {67, 494, 989, 989, 1979, 0}, 96, 4000, 132),
                                              accelerator("h100-sxm", "nvidia", {67, 494, 989, 989, 1979, 0}, 80, 3350, 132),
                                              accelerator("h100-hbm2e", "nvidia", {67, 494, 989, 989, 1979, 0}, 96, 2450, 132),
                                              accelerator("h100-pcie", "nvidia", {51, 378, 756, 756, 1513, 0}, 80, 2000, 114),
                                              accelerator("h800", "nvidia", {67, 494, 989, 989, 1979, 0}, 80, 3350, 132),
                                              accelerator("h20", "nvidia", {44, 74, 148, 148, 296, 0}, 96, 4000, 78),
                                              accelerator("a100-80", "nvidia", {19.5, 156, 312, 312, 0, 0}, 80, 2039, 108),
                                              accelerator("a100-40", "nvidia", {19.5, 156, 312, 312, 0, 0}, 40, 1555, 108),
                                              accelerator("a800", "nvidia", {19.5, 156, 312, 312, 0, 0}, 80, 2039, 108),
                                              accelerator("v100-32", "nvidia", {15.7, 0, 125, 0, 0, 0}, 32, 900, 80),
                                              accelerator("v100-16", "nvidia", {15.7, 0, 125, 0, 0, 0}, 16, 900, 80),
                                              accelerator("p40", "nvidia", {11.8, 0, 0, 0, 0, 0}, 24, 346, 30),
                                              accelerator("t4", "nvidia", {8.1, 0, 65, 0, 0, 0}, 16, 320, 40),
                                              accelerator("a10", "nvidia", {31.2, 62.5, 125, 125, 0, 0}, 24, 600, 72),
                                              accelerator("l4", "nvidia", {30.3, 60, 121, 121, 242, 0}, 24, 300, 58),
                                              accelerator("l40s", "nvidia", {91.6, 183, 362, 362, 733, 0}, 48, 864, 142),
                                              accelerator("rtx3090", "nvidia", {35.6, 35.6, 71, 71, 0, 0}, 24, 936, 82),
                                              accelerator("rtx4090", "nvidia", {82.6, 82.6, 165, 165, 330, 0}, 24, 1008, 128),
                                              accelerator("rtx5090", "nvidia", {104.8, 104.8, 209.5, 209.5, 419, 1676}, 32, 1792, 170),
                                              accelerator("mi250x", "amd", {47.9, 0, 383, 383, 0, 0}, 128, 3277, 220),
                                              accelerator("mi300x", "amd", {163.4, 653.7, 1307, 1307, 2614, 0}, 192, 5300, 304),
                                              accelerator("ascend910a", "huawei", {16, 0, 256, 0, 0, 0}, 32, 1200, 32),
                                              accelerator("ascend910b", "huawei", {94, 0, 376, 376, 0, 0}, 64, 1600, 24),
                                              accelerator("ascend910c", "huawei", {188, 0, 752, 752, 0, 0}, 128, 3200, 48),
                                              accelerator("kunlun-r200", "kunlunxin", {32, 0, 128, 0, 0, 0}, 32, 512, 8),
                                              accelerator("kunlun-p800", "kunlunxin", {86, 0, 345, 345, 0, 0}, 64, 1200, 8),
                                              accelerator("tpu-v4", "google", {0, 0, 0, 275, 0, 0}, 32, 1228, 8),
                                              accelerator("tpu-v5e", "google", {0, 0, 0, 197, 0, 0}, 16, 819, 4),
                                              accelerator("tpu-v5p", "google", {0, 0, 0, 459, 0, 0}, 95, 2765, 8),
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
  // Per direction; for networks of one adapter, with what protocols leave of the line rate. hccs: a device's seven links of 28 GB/s
  // to the others of its node together. nvlink-800: that of the A800 and H800.
  static const std::vector<Link> links = {{"nvlink5", BytesPerSecond(900e9), Seconds(4e-6), false},
                                          {"nvlink4", BytesPerSecond(450e9), Seconds(4e-6), false},
                                          {"nvlink3", BytesPerSecond(300e9), Seconds(4e-6), false},
                                          {"nvlink2", BytesPerSecond(150e9), Seconds(5e-6), false},
                                          {"nvlink-800", BytesPerSecond(200e9), Seconds(4e-6), false},
                                          {"pcie5", BytesPerSecond(56e9), Seconds(8e-6), false},
                                          {"pcie4", BytesPerSecond(26e9), Seconds(8e-6), false},
                                          {"pcie3", BytesPerSecond(12e9), Seconds(8e-6), false},
                                          {"hccs", BytesPerSecond(196e9), Seconds(8e-6), false},
                                          {"hccs-910c", BytesPerSecond(196e9), Seconds(6e-6), false},
                                          {"ici-v4", BytesPerSecond(150e9), Seconds(4e-6), false},
                                          {"ici-v5p", BytesPerSecond(300e9), Seconds(4e-6), false},
                                          {"xpulink", BytesPerSecond(100e9), Seconds(8e-6), false},
                                          {"rdma-800g", BytesPerSecond(96e9), Seconds(6e-6), true},
                                          {"rdma-400g", BytesPerSecond(48e9), Seconds(6e-6), true},
                                          {"rdma-200g", BytesPerSecond(24e9), Seconds(6e-6), true},
                                          {"rdma-100g", BytesPerSecond(12e9), Seconds(6e-6), true},
                                          {"rdma-25g", BytesPerSecond(3e9), Seconds(6e-6), true},
                                          {"tcp-100g", BytesPerSecond(10e9), Seconds(30e-6), true},
                                          {"tcp-25g", BytesPerSecond(2.9e9), Seconds(30e-6), true},
                                          {"tcp-10g", BytesPerSecond(1.17e9), Seconds(40e-6), true},
                                          {"tcp-1g", BytesPerSecond(117e6), Seconds(60e-6), true},
                                          {"shm", BytesPerSecond(5e9), Seconds(8e-6), true}};
  return links;
}

Link known_link(const std::string& name) { return find(known_links(), name, "link"); }

}  // namespace tessera::cluster
