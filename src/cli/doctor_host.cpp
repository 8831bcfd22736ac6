#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "base/error.hpp"
#include "cli/doctor_checks.hpp"

namespace tessera::cli {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kGiB = 1 << 30;

// The value of "KEY : value" lines in /proc files.
std::string proc_value(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string name = line.substr(0, colon);
    name.erase(name.find_last_not_of(" \t") + 1);
    if (name != key) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

Bytes meminfo(const std::string& key) {
  std::istringstream value(proc_value("/proc/meminfo", key));
  std::int64_t kib = 0;
  value >> kib;
  return Bytes(kib * 1024);
}

std::optional<Bytes> cgroup_limit() {
  std::ifstream file("/sys/fs/cgroup/memory.max");
  std::int64_t limit = 0;
  if (file >> limit) return Bytes(limit);
  return std::nullopt;
}

struct Space {
  Bytes total;
  Bytes free;
};

std::optional<Space> space_of(const std::filesystem::path& folder) {
  struct statvfs info {};
  if (statvfs(folder.c_str(), &info) != 0) return std::nullopt;
  const auto unit = static_cast<std::int64_t>(info.f_frsize);
  return Space{Bytes(unit * static_cast<std::int64_t>(info.f_blocks)), Bytes(unit * static_cast<std::int64_t>(info.f_bavail))};
}

}  // namespace

Finding check_cpu() {
  std::string model = proc_value("/proc/cpuinfo", "model name");
  if (model.empty()) model = "unknown model";
  const long usable = sysconf(_SC_NPROCESSORS_ONLN);
  return {"cpu", Status::ok, text(model, ", ", usable, " logical cores"), ""};
}

Finding check_instructions() {
  std::istringstream flags(proc_value("/proc/cpuinfo", "flags") + " " + proc_value("/proc/cpuinfo", "Features"));
  const std::array<std::string, 9> wanted = {"avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "asimd", "sve", "bf16"};
  std::string found;
  for (std::string flag; flags >> flag;) {
    if (std::find(wanted.begin(), wanted.end(), flag) != wanted.end()) found += (found.empty() ? "" : " ") + flag;
  }
  if (found.empty())
    return {"instructions", Status::absent, "no wide vector instructions", "training works, but slowly; AVX2 or better helps most"};
  return {"instructions", Status::ok, found, ""};
}

Finding check_memory() {
  const Bytes total = meminfo("MemTotal");
  const Bytes available = meminfo("MemAvailable");
  std::string value = text(to_text(total), ", ", to_text(available), " available");
  if (const auto limit = cgroup_limit(); limit && *limit < total) value += text(", limited to ", to_text(*limit), " by the cgroup");
  if (available < Bytes(kGiB))
    return {"memory", Status::missing, value, "a worker takes about 0.5 GiB before it holds a model; end other programs"};
  return {"memory", Status::ok, value, ""};
}

Finding check_shared_memory(const std::filesystem::path& mount) {
  const std::string name = "shared memory";
  const std::string advice =
      "workers of one host share memory of their own, but libraries use it too: mount -o remount,size=1G /dev/shm, or --shm-size=1g for a "
      "container";
  const auto space = space_of(mount);
  if (!space) return {name, Status::absent, text(mount.string(), " is not there"), advice};
  const std::string value = text(mount.string(), " ", to_text(space->total), ", ", to_text(space->free), " free");
  if (space->free < Bytes(64 * kMiB)) return {name, Status::absent, value, advice};
  return {name, Status::ok, value, ""};
}

Finding check_huge_pages(const std::filesystem::path& mode) {
  const std::string name = "huge pages";
  const std::string without = "training works, but slower on CPUs, as pages of 4 KiB are looked up";
  std::string modes;
  if (std::ifstream file(mode); !std::getline(file, modes)) return {name, Status::absent, "the kernel has none", without};
  const std::size_t begin = modes.find('['), end = modes.find(']');
  const std::string chosen = begin < end && end != std::string::npos ? modes.substr(begin + 1, end - begin - 1) : modes;
  if (chosen == "never") return {name, Status::absent, chosen, text(without, ": echo madvise > ", mode.string())};
  return {name, Status::ok, chosen == "always" ? "for every program" : "for programs that ask, as workers do", ""};
}

Finding check_open_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::string value = limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
  if (limit.rlim_cur < 1024) return {"open files", Status::missing, value, "ulimit -n 4096 before starting"};
  return {"open files", Status::ok, value, ""};
}

Finding check_locked_memory() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return {"locked memory", Status::ok, "unlimited", ""};
  const std::string value = to_text(Bytes(static_cast<std::int64_t>(limit.rlim_cur)));
  const bool has_rdma = std::filesystem::exists("/sys/class/infiniband");
  if (!has_rdma) return {"locked memory", Status::ok, value + " (only RDMA asks for more)", ""};
  return {"locked memory", Status::absent, value, "RDMA wants ulimit -l unlimited (/etc/security/limits.conf)"};
}

Finding check_disk(const std::filesystem::path& folder) {
  const auto space = space_of(folder);
  if (!space) return {"disk", Status::missing, text("cannot look at ", folder.string()), "change to a folder that exists"};
  const std::string value = text(to_text(space->free), " free of ", to_text(space->total), " here");
  if (space->free < Bytes(kGiB))
    return {"disk", Status::missing, value, "checkpoints of a small run need about 1 GiB; free some space or work elsewhere"};
  return {"disk", Status::ok, value, ""};
}

Finding check_writable(const std::string& name, const std::filesystem::path& folder, const std::string& advice) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(folder, error).lexically_normal();
  while (!std::filesystem::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  // Permissions alone do not tell: the file system may be mounted to be read only.
  std::string probe = (there / ".tessera-doctor-XXXXXX").string();
  const int file = mkstemp(probe.data());
  if (file < 0) return {name, Status::missing, text(there.string(), " takes no files: ", std::strerror(errno)), advice};
  close(file);
  unlink(probe.c_str());
  return {name, Status::ok, folder.string(), ""};
}

std::vector<Finding> check_network() {
  std::map<std::string, std::string> interfaces;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    return {{"network", Status::missing, "interfaces cannot be listed", "workers meet over TCP at least on 127.0.0.1"}};
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET || (entry->ifa_flags & IFF_UP) == 0) continue;
    std::array<char, INET_ADDRSTRLEN> address{};
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, address.data(), address.size());
    std::string value = address.data();
    int megabits = 0;
    if (std::ifstream speed("/sys/class/net/" + std::string(entry->ifa_name) + "/speed"); speed >> megabits && megabits > 0) {
      value += text(", ", megabits / 1000.0, " Gbit/s");
    }
    std::string& known = interfaces[entry->ifa_name];
    known += (known.empty() ? "" : ", ") + value;
  }
  freeifaddrs(list);
  std::vector<Finding> findings;
  for (const auto& [name, value] : interfaces) findings.push_back({"network " + name, Status::ok, value, ""});
  if (!interfaces.contains("lo")) {
    findings.push_back({"network lo", Status::missing, "the loopback interface is down", "ip link set lo up"});
  }
  std::error_code ignored;
  for (const auto& device : std::filesystem::directory_iterator("/sys/class/infiniband", ignored)) {
    findings.push_back({"rdma " + device.path().filename().string(), Status::ok, "present", ""});
  }
  return findings;
}

}  // namespace tessera::cli
