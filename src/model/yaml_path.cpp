#include "model/yaml_path.hpp"

#include <optional>
#include <utility>

#include "model/job.hpp"
#include "model/run_name.hpp"

namespace tessera::model {

std::filesystem::path path_of(const ConfigNode& node) {
  const std::filesystem::path written = node.as_string();
  const bool overridden = node.where().file != node.file();
  return overridden || written.empty() ? written : std::filesystem::path(node.file()).parent_path() / written;
}

std::filesystem::path init_of(const ConfigNode& node) {
  const std::filesystem::path path = path_of(node);
  std::error_code ignored;  // a name that no file can have is a folder that does not exist
  return std::filesystem::exists(path, ignored) ? path : std::filesystem::path(node.as_string());
}

std::string quoted(const std::filesystem::path& path) {
  std::string out = "\"";
  for (const char c : path.string()) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

ConfigNode load_yaml(const std::filesystem::path& path, const std::vector<std::string>& overrides) {
  ConfigNode root = ConfigNode::load(path);
  // A Hugging Face config.json stands for a job that says its model alone.
  if (root.is_map() && root.has("model_type") && !root.has("model"))
    root = ConfigNode::parse("model: {}", path.string()).with_override("model.hf", quoted(path));
  for (const std::string& setting : overrides) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos)
      throw Error(ErrorCode::invalid_config, "--set " + setting + ": no '='", {}, "SECTION.KEY=VALUE, such as train.steps=50");
    root = root.with_override(setting.substr(0, equals), setting.substr(equals + 1));
  }
  return root;
}

namespace {

// Where a path may stand, and the word that stands there for something else.
struct PathKey {
  std::string key;
  std::string word;
};

std::vector<PathKey> path_keys(const JobSpec& job) {
  std::vector<PathKey> keys = {{"model.hf", ""},    {"model.plugin", ""}, {"data.source", "synthetic"},  {"data.tokenizer.file", ""},
                               {"cluster", "auto"}, {"parallel", "auto"}, {"parameter_servers.disk", ""}};
  if (!job.on_end.empty() && job.on_end.front().find('/') != std::string::npos) keys.push_back({"on_end.0", ""});
  for (std::size_t i = 0; i < job.data.sources.size(); ++i)
    for (const char* entry : {"", ".path"}) keys.push_back({text("data.sources.", i, entry), ""});
  return keys;
}

// A checkpoint's or a Hugging Face folder, a file with a state dict, or a run by its name.
std::filesystem::path absolute_init(const std::filesystem::path& init) {
  if (init.is_absolute()) return init;
  if (std::filesystem::is_regular_file(init)) return std::filesystem::absolute(init);
  for (const char* mark : {"manifest.json", "config.json"})
    if (std::filesystem::exists(init / mark)) return std::filesystem::absolute(init);
  const RunName run = find_run(init);
  return std::filesystem::absolute(run.folder).string() + (run.step ? text("@", *run.step) : "");
}

std::optional<ConfigNode> find_dotted(ConfigNode node, std::string_view key) {
  for (;;) {
    const std::size_t dot = key.find('.');
    const std::string name(key.substr(0, dot));
    if (node.is_sequence()) {
      node = node[static_cast<std::size_t>(std::stoul(name))];
    } else {
      const auto found = node.is_map() ? node.find(name) : std::nullopt;
      if (!found) return std::nullopt;
      node = *found;
    }
    if (dot == std::string_view::npos) return node;
    key.remove_prefix(dot + 1);
  }
}

}  // namespace

std::string portable_yaml(const std::filesystem::path& path, const std::vector<std::string>& overrides) {
  ConfigNode root = load_yaml(path, overrides);
  const JobSpec job = read_job(root);
  std::vector<std::pair<std::string, std::string>> absolute;
  for (const PathKey& key : path_keys(job)) {
    const auto node = find_dotted(root, key.key);
    if (node && node->is_scalar() && node->as_string() != key.word)
      absolute.emplace_back(key.key, quoted(std::filesystem::absolute(path_of(*node))));
  }
  if (!job.train.init.empty()) absolute.emplace_back("train.init", quoted(absolute_init(job.train.init)));
  for (const auto& [key, value] : absolute) root = root.with_override(key, value);
  return read_job(root).resolved_yaml;
}

}  // namespace tessera::model
