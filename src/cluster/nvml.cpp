#include <array>
#include <cctype>

#include "base/dynamic_library.hpp"
#include "cluster/host.hpp"

namespace tessera::cluster {
namespace {

// The part of NVML's stable C interface that is used here.
using Handle = void*;
struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

// "T4" stands in "Tesla T4" but not in "T400".
bool has_word(const std::string& name, const std::string& word) {
  const auto joined = [&](std::size_t at) { return at < name.size() && std::isalnum(static_cast<unsigned char>(name[at])) != 0; };
  for (std::size_t at = name.find(word); at != std::string::npos; at = name.find(word, at + 1))
    if (!(at > 0 && joined(at - 1)) && !joined(at + word.size())) return true;
  return false;
}

}  // namespace

std::vector<FoundDevice> nvidia_devices() {
  std::vector<FoundDevice> found;
  std::string why;
  const DynamicLibrary library("libnvidia-ml.so.1", why);
  if (!library) return found;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle_of)(unsigned, Handle*) = nullptr;
  int (*name_of)(Handle, char*, unsigned) = nullptr;
  int (*memory_of)(Handle, NvmlMemory*) = nullptr;
  int (*link_state)(Handle, unsigned, unsigned*) = nullptr;
  const bool all = library.find("nvmlInit_v2", init) && library.find("nvmlShutdown", shutdown) &&
                   library.find("nvmlDeviceGetCount_v2", count) && library.find("nvmlDeviceGetHandleByIndex_v2", handle_of) &&
                   library.find("nvmlDeviceGetName", name_of) && library.find("nvmlDeviceGetMemoryInfo", memory_of);
  library.find("nvmlDeviceGetNvLinkState", link_state);
  if (!all || init() != 0) return found;
  unsigned devices = 0;
  if (count(&devices) != 0) devices = 0;
  for (unsigned i = 0; i < devices; ++i) {
    Handle handle = nullptr;
    std::array<char, 128> name{};
    NvmlMemory memory{};
    if (handle_of(i, &handle) != 0 || name_of(handle, name.data(), name.size()) != 0 || memory_of(handle, &memory) != 0) continue;
    int nvlinks = 0;
    constexpr unsigned kMostLinks = 18;
    for (unsigned link = 0; link < kMostLinks && link_state; ++link)
      if (unsigned active = 0; link_state(handle, link, &active) == 0 && active != 0) ++nvlinks;
    found.push_back({name.data(), Bytes(static_cast<std::int64_t>(memory.total)), nvlinks});
  }
  shutdown();
  return found;
}

std::optional<Device> recognize(const FoundDevice& found) {
  // More particular names first.
  static constexpr std::array<std::pair<const char*, const char*>, 25> kNames = {{{"GB300", "gb300"},
                                                                                  {"GB200", "gb200"},
                                                                                  {"B300", "b300"},
                                                                                  {"B200", "b200"},
                                                                                  {"GH200", "gh200"},
                                                                                  {"H200", "h200"},
                                                                                  {"H100 PCIe", "h100-pcie"},
                                                                                  {"H100", "h100-sxm"},
                                                                                  {"H800", "h800"},
                                                                                  {"H20", "h20"},
                                                                                  {"A100-SXM4-40GB", "a100-40"},
                                                                                  {"A100-PCIE-40GB", "a100-40"},
                                                                                  {"A100", "a100-80"},
                                                                                  {"A800", "a800"},
                                                                                  {"V100-SXM2-16GB", "v100-16"},
                                                                                  {"V100-PCIE-16GB", "v100-16"},
                                                                                  {"V100", "v100-32"},
                                                                                  {"P40", "p40"},
                                                                                  {"T4", "t4"},
                                                                                  {"A10", "a10"},
                                                                                  {"L40S", "l40s"},
                                                                                  {"L4", "l4"},
                                                                                  {"RTX 3090", "rtx3090"},
                                                                                  {"RTX 4090", "rtx4090"},
                                                                                  {"RTX 5090", "rtx5090"}}};
  for (const auto& [part, name] : kNames) {
    if (!has_word(found.name, part)) continue;
    Device device = known_device(name);
    device.memory = found.memory;
    return device;
  }
  return std::nullopt;
}

Link link_inside(const FoundDevice& found, const Device& device) {
  if (found.nvlinks == 0) return known_link("pcie4");
  static constexpr std::array<std::pair<const char*, const char*>, 12> kGenerations = {{{"gb300", "nvlink5"},
                                                                                        {"gb200", "nvlink5"},
                                                                                        {"b300", "nvlink5"},
                                                                                        {"b200", "nvlink5"},
                                                                                        {"gh200", "nvlink4"},
                                                                                        {"h200", "nvlink4"},
                                                                                        {"h100", "nvlink4"},
                                                                                        {"h800", "nvlink-800"},
                                                                                        {"h20", "nvlink4"},
                                                                                        {"a100", "nvlink3"},
                                                                                        {"a800", "nvlink-800"},
                                                                                        {"v100", "nvlink2"}}};
  for (const auto& [prefix, link] : kGenerations)
    if (device.name.starts_with(prefix)) return known_link(link);
  return known_link("pcie4");
}

}  // namespace tessera::cluster
