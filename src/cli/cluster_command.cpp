#include <unistd.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/file_system.hpp"
#include "base/table.hpp"
#include "base/terminal.hpp"
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

// "19.5 T"
std::string peak_text(const cluster::Device& device, const char* precision) {
  const auto found = device.peak.find(precision);
  if (found == device.peak.end()) return "-";
  const std::string rate = to_text(found->second);
  return rate.substr(0, rate.find("FLOP/s"));
}

void discover(const std::string& output, bool json) {
  const cluster::ClusterSpec cluster = cluster::discover_host();
  const std::string yaml = cluster::to_yaml(cluster);
  if (!output.empty()) write_named(output, yaml);
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
  using Align = Table::Align;
  const int columns = columns_of(STDOUT_FILENO);
  Table devices({{"device"},
                 {"vendor"},
                 {"fp32", Align::right},
                 {"fp16", Align::right},
                 {"bf16", Align::right},
                 {"memory", Align::right},
                 {"bandwidth", Align::right}});
  Table stacks({{"device"}, {"calibrated on what these stacks reach (a group's `stack:`)", Align::wrapped}});
  for (const auto& device : cluster::known_devices()) {
    devices.add({device.name, device.vendor, peak_text(device, "fp32"), peak_text(device, "fp16"), peak_text(device, "bf16"),
                 to_text(device.memory), to_text(device.memory_bandwidth)});
    std::string names;
    for (const std::string& stack : profile::stacks_of(device.name)) names += (names.empty() ? "" : ", ") + stack;
    if (!names.empty()) stacks.add({device.name, names});
  }
  Table links({{"link"}, {"bandwidth", Align::right}, {"latency", Align::right}});
  for (const auto& link : cluster::known_links()) links.add({link.name, to_text(link.bandwidth), to_text(link.latency)});
  std::printf("%sfp32, fp16 and bf16 in FLOP/s; a cpu's are those of one core\n\n%s\n%s", devices.text(columns).c_str(),
              links.text(columns).c_str(), stacks.text(columns).c_str());
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
