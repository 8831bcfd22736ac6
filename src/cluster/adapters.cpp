#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cluster/host.hpp"

namespace tessera::cluster {
namespace {

namespace fs = std::filesystem;

// What protocols leave of the line rate, and how long a message takes at least.
constexpr double kRdmaShare = 0.96;
constexpr double kTcpShare = 0.93;
constexpr Seconds kRdmaLatency(6e-6);
constexpr Seconds kTcpLatency(40e-6);

std::string first_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> out;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

double number_at_start(const std::string& words) {
  double value = 0;
  return std::istringstream(words) >> value ? value : 0;
}

}  // namespace

std::vector<FoundAdapter> network_adapters(const fs::path& class_folder) {
  std::vector<FoundAdapter> out;
  // "4: ACTIVE", "400 Gb/sec (4X NDR)"
  for (const fs::path& device : entries_of(class_folder / "infiniband"))
    for (const fs::path& port : entries_of(device / "ports"))
      if (const double gigabits = number_at_start(first_line(port / "rate")); gigabits > 0 && first_line(port / "state").starts_with("4"))
        out.push_back({device.filename().string(), gigabits, true});
  // Virtual interfaces have no device; the speed is in Mbit/s, and -1 or no file where it is not known.
  std::error_code ignored;
  for (const fs::path& interface : entries_of(class_folder / "net"))
    if (const double megabits = number_at_start(first_line(interface / "speed"));
        megabits > 0 && first_line(interface / "operstate") == "up" && fs::exists(interface / "device", ignored))
      out.push_back({interface.filename().string(), megabits / 1e3, false});
  return out;
}

NetworkOfHost network_of(const std::vector<FoundAdapter>& adapters) {
  const auto slower = [](const FoundAdapter& a, const FoundAdapter& b) {
    return std::pair(a.rdma, a.gigabits) < std::pair(b.rdma, b.gigabits);
  };
  const auto best = std::max_element(adapters.begin(), adapters.end(), slower);
  if (best == adapters.end()) return {known_link("tcp-10g"), 1};
  const auto equal = [&](const FoundAdapter& one) { return one.rdma == best->rdma && one.gigabits == best->gigabits; };
  // TCP uses one interface, unless the system has been told to join them; RDMA libraries use all.
  const int count = best->rdma ? static_cast<int>(std::count_if(adapters.begin(), adapters.end(), equal)) : 1;
  const std::string name = text(best->rdma ? "rdma-" : "tcp-", std::lround(best->gigabits), "g");
  for (const Link& link : known_links())
    if (link.name == name) return {link, count};
  const double bytes = best->gigabits * 1e9 / 8 * (best->rdma ? kRdmaShare : kTcpShare);
  return {{name, BytesPerSecond(bytes), best->rdma ? kRdmaLatency : kTcpLatency, true}, count};
}

}  // namespace tessera::cluster
