#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "cluster/host.hpp"

namespace tessera::cluster {
namespace {

// The value of the first line "key : value".
std::string field(const std::string& lines, const std::string& key) {
  std::size_t at = 0;
  while (at < lines.size()) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string line = lines.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(key)) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.find_first_not_of(" \t", key.size()) != colon) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

double number(const std::string& word) {
  double value = 0;
  const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), value);
  return problem == std::errc() ? value : 0;
}

struct Isa {
  std::string name;
  double fp32_per_cycle;  // FLOPs of one core: vector units x lanes x 2
  double bf16_per_cycle;  // half of fp32 where bf16 is converted in software
};

Isa intel(int model, bool avx512) {
  constexpr double kAmx = 1024;  // the matrix unit: 16 x 16 x 32 bf16 products each 16 cycles
  if (model == 173 || model == 174) return {"cpu:granite-rapids", 64, kAmx};
  if (model == 143 || model == 207) return {"cpu:sapphire-rapids", 64, kAmx};
  if (model == 106 || model == 108) return {"cpu:ice-lake", 64, 32};
  if (model == 85) return {"cpu:skylake", 64, 32};
  return avx512 ? Isa{"cpu:avx512", 64, 32} : Isa{"cpu:avx2", 32, 16};
}

Isa isa_of(const std::string& cpuinfo) {
  const std::string flags = field(cpuinfo, "flags");
  const auto has = [&](const std::string& flag) { return (" " + flags + " ").find(" " + flag + " ") != std::string::npos; };
  const int family = static_cast<int>(number(field(cpuinfo, "cpu family")));
  const int model = static_cast<int>(number(field(cpuinfo, "model")));
  const bool avx512 = has("avx512f");
  if (flags.empty()) return field(cpuinfo, "CPU architecture").empty() ? Isa{"cpu:generic", 8, 4} : Isa{"cpu:neoverse", 32, 64};
  Isa isa{"cpu:generic", 8, 4};
  if (field(cpuinfo, "vendor_id") == "AuthenticAMD") {
    if (family >= 26)
      isa = {"cpu:zen5", 64, 128};
    else if (family == 25 && avx512)
      isa = {"cpu:zen4", 32, 64};
    else if (family == 25)
      isa = {"cpu:zen3", 32, 16};
    else if (family == 23)
      isa = {"cpu:zen2", 32, 16};
    else if (has("avx2"))
      isa = {"cpu:avx2", 32, 16};
  } else if (has("avx2")) {
    isa = intel(model, avx512);
  }
  // A hypervisor may hide what the core could do.
  if (!avx512 && has("avx2")) isa.fp32_per_cycle = std::min(isa.fp32_per_cycle, 32.0);
  if (!has("avx512_bf16") && !has("amx_bf16")) isa.bf16_per_cycle = std::min(isa.bf16_per_cycle, isa.fp32_per_cycle / 2);
  if (!has("amx_bf16") && isa.bf16_per_cycle > 2 * isa.fp32_per_cycle)
    isa.bf16_per_cycle = has("avx512_bf16") ? 2 * isa.fp32_per_cycle : isa.fp32_per_cycle / 2;
  return isa;
}

// "AMD EPYC @ 2.6GHz"-style names carry the nominal frequency; "cpu MHz" is the momentary one.
double hertz_of(const std::string& cpuinfo) {
  const std::string name = field(cpuinfo, "model name");
  const std::size_t at = name.rfind("@ ");
  if (at != std::string::npos)
    if (const double gigahertz = number(name.substr(at + 2)); gigahertz > 0) return gigahertz * 1e9;
  const double megahertz = number(field(cpuinfo, "cpu MHz"));
  return megahertz > 0 ? megahertz * 1e6 : 2.5e9;
}

}  // namespace

Device cpu_from(const std::string& cpuinfo, int cores, Bytes memory, double measured) {
  const Isa isa = isa_of(cpuinfo);
  const double hertz = std::max(hertz_of(cpuinfo), measured);
  Device device;
  device.name = isa.name;
  device.vendor = "cpu";
  device.peak["fp32"] = FlopsPerSecond(isa.fp32_per_cycle * hertz);
  device.peak["bf16"] = FlopsPerSecond(isa.bf16_per_cycle * hertz);
  device.memory = memory;
  // One core draws some 12 GB/s; a socket's channels end the growth.
  device.memory_bandwidth = BytesPerSecond(std::min(12e9 * cores, 200e9));
  device.cores = cores;
  return device;
}

Bytes memory_from(const std::string& meminfo, const std::string& group_limit) {
  std::int64_t memory = static_cast<std::int64_t>(number(field(meminfo, "MemTotal"))) * 1024;
  const double limit = number(group_limit);
  if (limit > 0 && limit < static_cast<double>(memory)) memory = static_cast<std::int64_t>(limit);
  return Bytes(memory);
}

std::vector<std::string> group_folders(const std::string& self_cgroup, const std::string& controller) {
  const std::string root = "/sys/fs/cgroup";
  std::vector<std::string> folders;
  std::istringstream lines(self_cgroup);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    const std::string base = controllers.empty() ? root : root + "/" + controllers;
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    for (;;) {
      folders.push_back(base + path);
      if (path.empty() || path.front() != '/') break;
      path.erase(path.rfind('/'));
    }
  }
  return folders;
}

int cores_from(int cores, const std::string& quota) {
  const std::size_t space = quota.find(' ');
  const double used = number(quota.substr(0, space));
  const double period = space == std::string::npos ? 100000 : number(quota.substr(space + 1));
  if (used <= 0 || period <= 0) return std::max(1, cores);
  return std::clamp(static_cast<int>(std::ceil(used / period)), 1, std::max(1, cores));
}

}  // namespace tessera::cluster
