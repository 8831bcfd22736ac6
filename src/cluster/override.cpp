#include <algorithm>
#include <charconv>
#include <string_view>

#include "cluster/cluster.hpp"

namespace tessera::cluster {
namespace {

constexpr std::string_view kPrefix = "cluster.";

struct Setting {
  std::string key;  // dotted, below "cluster."
  std::string value;
  std::string written;
};

[[noreturn]] void refuse(const Setting& setting, const std::string& what, const std::string& expected, const std::string& hint = {}) {
  throw Error(ErrorCode::invalid_config, text("--set ", setting.written, ": ", what), {}, expected, hint);
}

std::string first_word(const std::string& key) { return key.substr(0, key.find('.')); }
std::string after_first_word(const std::string& key) { return key.substr(std::min(key.size(), first_word(key).size())); }

// What a file may say of a group in short stands at its device when it is written in full.
std::string in_full(const std::string& group_key) {
  const std::string word = first_word(group_key);
  return word == "memory" || word == "cores" ? "device." + group_key : group_key;
}

// A short key stands for a key of each group; "link" for all links between nodes.
std::vector<std::string> full_keys(const Setting& setting, std::size_t groups) {
  const std::string word = first_word(setting.key);
  if (word == "name" || word == "between") return {setting.key};
  if (word == "groups") {
    const std::size_t group_end = setting.key.find('.', word.size() + 1);
    if (group_end == std::string::npos) return {setting.key};
    return {setting.key.substr(0, group_end + 1) + in_full(setting.key.substr(group_end + 1))};
  }
  if (const auto guess = nearest(word, {"groups", "between", "link"}); guess && *guess != word)
    refuse(setting, text("a cluster has no '", word, "'"),
           "groups.N.KEY, between, link, or a key of every group such as nodes, memory, network", text("did you mean '", *guess, "'?"));
  const std::string of_group = word == "link" ? "network" + after_first_word(setting.key) : in_full(setting.key);
  std::vector<std::string> out;
  for (std::size_t g = 0; g < groups; ++g) out.push_back(text("groups.", g, '.', of_group));
  if (word == "link") out.push_back("between" + after_first_word(setting.key));
  return out;
}

std::optional<ConfigNode> find_entry(const ConfigNode& list, const std::string& word) {
  const auto items = list.items();
  for (std::size_t i = 0; i < items.size(); ++i)
    if (word == text(i) || (items[i].is_map() && items[i].get("name", std::string()) == word)) return items[i];
  return std::nullopt;
}

std::optional<ConfigNode> find_path(const ConfigNode& root, const std::string& key) {
  std::optional<ConfigNode> node = root;
  for (std::string rest = key; node && !rest.empty();) {
    const std::string word = first_word(rest);
    rest.erase(0, std::min(rest.size(), word.size() + 1));
    if (node->is_sequence()) {
      node = find_entry(*node, word);
    } else {
      node = node->is_map() ? node->find(word) : std::nullopt;
    }
  }
  return node;
}

// "x2" and "x0.5" multiply what is there; of a link, its bandwidth.
std::optional<double> factor_of(const std::string& value) {
  double factor = 0;
  if (value.size() < 2 || value.front() != 'x') return std::nullopt;
  const auto [end, problem] = std::from_chars(value.data() + 1, value.data() + value.size(), factor);
  return problem == std::errc() && end == value.data() + value.size() && factor > 0 ? std::optional(factor) : std::nullopt;
}

// A number with its unit, `factor` times as large.
std::optional<std::string> scaled(const std::string& quantity, double factor) {
  double number = 0;
  const auto [end, problem] = std::from_chars(quantity.data(), quantity.data() + quantity.size(), number);
  if (problem != std::errc()) return std::nullopt;
  char digits[32];
  const auto written = std::to_chars(digits, digits + sizeof digits, number * factor);
  return std::string(digits, written.ptr) + std::string(end, quantity.data() + quantity.size());
}

ConfigNode apply(const ConfigNode& root, const Setting& setting, std::string key) {
  std::string value = setting.value;
  if (const auto factor = factor_of(setting.value)) {
    auto found = find_path(root.at("cluster"), key);
    if (found && found->is_map() && found->has("bandwidth")) {
      key += ".bandwidth";
      found = found->find("bandwidth");
    }
    const auto product = found && found->is_scalar() ? scaled(found->as_string(), *factor) : std::nullopt;
    if (!product)
      refuse(setting, text("there is no number to multiply at ", key),
             "a key that holds a number, such as nodes, memory or network.bandwidth");
    value = *product;
  }
  return root.with_override(std::string(kPrefix) + key, value);
}

std::string indented(const std::string& yaml) {
  std::string out = "cluster:\n";
  for (std::size_t begin = 0; begin < yaml.size();) {
    const std::size_t end = std::min(yaml.find('\n', begin), yaml.size() - 1);
    out += "  " + yaml.substr(begin, end + 1 - begin);
    begin = end + 1;
  }
  return out;
}

// What was measured is looked up by the link's name and holds no longer.
void rename_changed(Link& link, const Link& before) {
  if (link.name == before.name && (link.bandwidth != before.bandwidth || link.latency != before.latency || link.shared != before.shared))
    link.name += " as set";
}

}  // namespace

bool is_cluster_override(const std::string& setting) {
  if (!setting.starts_with(kPrefix)) return false;
  const std::string word = first_word(setting.substr(kPrefix.size(), setting.find('=') - kPrefix.size()));
  return word != "local" && word != "lab";
}

ClusterSpec with_overrides(const ClusterSpec& cluster, const std::vector<std::string>& settings) {
  if (settings.empty()) return cluster;
  ConfigNode root = ConfigNode::parse(indented(to_yaml(cluster)), cluster.name);
  for (const std::string& written : settings) {
    const std::size_t equals = written.find('=');
    if (equals == std::string::npos)
      throw Error(ErrorCode::invalid_config, "--set " + written + ": no '='", {}, "cluster.KEY=VALUE, such as cluster.nodes=4");
    const Setting setting{written.substr(kPrefix.size(), equals - kPrefix.size()), written.substr(equals + 1), written};
    for (const std::string& key : full_keys(setting, cluster.groups.size())) root = apply(root, setting, key);
  }
  ClusterSpec out = read_cluster(root.at("cluster"));
  rename_changed(out.between, cluster.between);
  for (std::size_t g = 0; g < std::min(out.groups.size(), cluster.groups.size()); ++g) {
    ResourceGroup& group = out.groups[g];
    const ResourceGroup& before = cluster.groups[g];
    rename_changed(group.inside, before.inside);
    rename_changed(group.network, before.network);
    // More cores of a host hold as many more workers, unless that was set too.
    if (group.device.is_cpu() && group.devices_per_node == before.devices_per_node && before.devices_per_node == before.device.cores)
      group.devices_per_node = group.device.cores;
  }
  return out;
}

}  // namespace tessera::cluster
