#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/file_system.hpp"
#include "cli/commands.hpp"
#include "cluster/cluster.hpp"
#include "profile/calibration.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const cluster::Device& device) {
  Json peak = Json::object();
  for (const auto& [precision, rate] : device.peak) peak[precision] = rate.value;
  Json out = {{"name", device.name},
              {"vendor", device.vendor},
              {"peak_flops", peak},
              {"memory_bytes", device.memory.value},
              {"memory_bandwidth", device.memory_bandwidth.value}};
  if (device.cores > 0) out["cores"] = device.cores;
  if (const auto stacks = profile::stacks_of(device.name); !stacks.empty()) out["stacks"] = stacks;
  return out;
}

Json json_of(const cluster::Link& link) {
  return {{"name", link.name}, {"bandwidth", link.bandwidth.value}, {"latency_seconds", link.latency.value}, {"shared", link.shared}};
}

std::string peak_text(const cluster::Device& device, const char* precision) {
  const auto found = device.peak.find(precision);
  return found == device.peak.end() ? "-" : to_text(found->second);
}

void discover(const std::string& output, bool json) {
  const cluster::ClusterSpec cluster = cluster::discover_host();
  const std::string yaml = cluster::to_yaml(cluster);
  if (!output.empty()) write_whole(real_file_system(), output, yaml);
  if (json) {
    Json groups = Json::array();
    for (const auto& group : cluster.groups)
      groups.push_back({{"name", group.name},
                        {"device", json_of(group.device)},
                        {"nodes", group.nodes},
                        {"devices_per_node", group.devices_per_node},
                        {"inside", json_of(group.inside)},
                        {"network", json_of(group.network)}});
    std::printf("%s\n", Json({{"name", cluster.name}, {"fingerprint", cluster.fingerprint()}, {"groups", groups}}).dump().c_str());
  } else if (output.empty()) {
    std::printf("%s", yaml.c_str());
  } else {
    std::printf("written to %s; name it in a train.yaml: cluster: %s\n", output.c_str(), output.c_str());
  }
}

void list(bool json) {
  if (json) {
    Json devices = Json::array();
    for (const auto& device : cluster::known_devices()) devices.push_back(json_of(device));
    Json links = Json::array();
    for (const auto& link : cluster::known_links()) links.push_back(json_of(link));
    std::printf("%s\n", Json({{"devices", devices}, {"links", links}}).dump().c_str());
    return;
  }
  std::printf("%-22s %-8s %14s %14s %14s %10s %12s\n", "device", "vendor", "fp32", "fp16", "bf16", "memory", "bandwidth");
  for (const auto& device : cluster::known_devices())
    std::printf("%-22s %-8s %14s %14s %14s %10s %12s\n", device.name.c_str(), device.vendor.c_str(), peak_text(device, "fp32").c_str(),
                peak_text(device, "fp16").c_str(), peak_text(device, "bf16").c_str(), to_text(device.memory).c_str(),
                to_text(device.memory_bandwidth).c_str());
  std::printf("a cpu's rates are those of one core\n\n%-22s %12s %10s\n", "link", "bandwidth", "latency");
  for (const auto& link : cluster::known_links())
    std::printf("%-22s %12s %10s\n", link.name.c_str(), to_text(link.bandwidth).c_str(), to_text(link.latency).c_str());
  std::printf("\n%-22s calibrated on what these stacks reach (a group's `stack:`)\n", "device");
  for (const auto& device : cluster::known_devices()) {
    std::string stacks;
    for (const std::string& stack : profile::stacks_of(device.name)) stacks += (stacks.empty() ? "" : ", ") + stack;
    if (!stacks.empty()) std::printf("%-22s %s\n", device.name.c_str(), stacks.c_str());
  }
}

}  // namespace

void add_cluster_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("cluster", "What there is to train on")->group(kPlanGroup);
  command->require_subcommand(1);
  struct Options {
    std::string output;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* discover_command = command->add_subcommand("discover", "Describe this host as a cluster file");
  discover_command->add_option("-o,--output", options->output, "Write to this file instead of the terminal");
  discover_command->add_flag("--json", options->json, "As JSON");
  discover_command->callback([options] { discover(options->output, options->json); });
  CLI::App* list_command = command->add_subcommand("list", "The devices, links and software stacks that are known without measurement");
  list_command->add_flag("--json", options->json, "As JSON");
  list_command->callback([options] { list(options->json); });
}

}  // namespace tessera::cli
