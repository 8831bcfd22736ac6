#include <fmt/ranges.h>
#include <algorithm>
#include <map>

#include "interop/galvatron/inputs.hpp"

namespace tessera::interop::galvatron {
namespace {

constexpr const char* kRoot = "search_engine";

// What each section may hold. Sections that Galvatron's other programs share hold more than the search reads.
struct Section {
  std::vector<std::string> read;
  bool shared = false;
};

const std::map<std::string, Section>& sections() {
  static const std::map<std::string, Section> all = {
      {"profiling_info",
       {{"time_profile_mode", "memory_profile_mode", "memory_profiling_path", "time_profiling_path", "allreduce_bandwidth_config_path",
         "p2p_bandwidth_config_path", "overlap_coe_path", "sp_time_path"}}},
      {"model_info", {{"model_config_path", "model_size", "hidden_size", "num_layers", "is_moe_model"}, true}},
      {"common_train_info", {{"seq_length", "sequence_parallel", "global_memory_buffer"}, true}},
      {"parallelism_info", {{"default_dp_type", "pipeline_type", "async_grad_reduce", "mixed_precision"}, true}},
      {"hardware_info", {{"num_nodes", "num_gpus_per_node", "memory_constraint"}}},
      {"batch_size_info", {{"min_bsz", "max_bsz", "bsz_scale", "settle_bsz", "settle_chunk", "recommend_min_bsz"}}},
      {"search_space_info",
       {{"disable_dp", "disable_tp", "disable_cp", "disable_sp", "disable_pp", "disable_ckpt", "disable_fsdp",
         "disable_embedding_lmhead_tp", "disable_embedding_lmhead_sp", "max_tp_deg", "max_pp_deg", "max_sp_deg", "max_cp_deg"}}},
      {"options_info", {{"parallel_search", "worker", "log_dir", "output_config_path", "fine_grained_mode"}}},
      {"debug_info", {{"debug_costmodel_coe"}}}};
  return all;
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const auto& [name, section] : sections()) names.push_back(name);
  return names;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const auto near = nearest(word, known);
  return near ? "did you mean '" + *near + "'?" : "";
}

// Overrides may leave the leading parts out where the rest says enough.
std::string full_key(const ConfigNode& root, const std::string& key) {
  const std::size_t dot = key.find('.');
  const std::string head = key.substr(0, dot);
  if (root.has(head)) return key;
  if (sections().contains(head)) return text(kRoot, '.', key);
  std::vector<std::string> known = root.keys();
  if (dot == std::string::npos) {
    for (const auto& [name, section] : sections()) {
      if (std::find(section.read.begin(), section.read.end(), key) != section.read.end()) return text(kRoot, '.', name, '.', key);
      known.insert(known.end(), section.read.begin(), section.read.end());
    }
  } else {
    known = section_names();
    known.push_back(kRoot);
  }
  throw Error(ErrorCode::invalid_config, text("the override ", key, "=... names nothing in ", root.file()), {},
              "KEY=VALUE with a key of that file", did_you_mean(dot == std::string::npos ? key : head, known));
}

ConfigNode with_overrides(ConfigNode root, const std::vector<std::string>& overrides) {
  for (const std::string& word : overrides) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorCode::invalid_config, text("not an override: ", word), {},
                  "KEY=VALUE, for example search_engine.hardware_info.memory_constraint=24");
    const std::string key = word.substr(word.find_first_not_of('+'), equals - word.find_first_not_of('+'));
    if (key.starts_with('~'))
      throw Error(ErrorCode::invalid_config, text("cannot remove a key: ", word), {}, "KEY=VALUE",
                  "a key that is missing keeps its default");
    root = root.with_override(full_key(root, key), word.substr(equals + 1));
  }
  return root;
}

void check_names(const ConfigNode& root) {
  const ConfigNode engine = root.at(kRoot);
  for (const std::string& name : engine.keys()) {
    const auto section = sections().find(name);
    if (section == sections().end()) throw engine.at(name).error("is no section of the search", {}, did_you_mean(name, section_names()));
    const std::vector<std::string>& known = section->second.read;
    for (const std::string& key : engine.at(name).keys()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      const auto near = nearest(key, known);
      // Of a shared section only what looks like a slip of the pen is refused.
      const bool other_option = key == "ffn_hidden_size" || key == "num_moe_layers";
      if (!section->second.shared || (near && !other_option))
        throw engine.at(name).at(key).error("is not known here", {}, did_you_mean(key, known));
    }
  }
}

// Values of one YAML with ${NAME} and ${a.b} replaced by what they name.
class Options {
 public:
  explicit Options(ConfigNode root) : root_(std::move(root)) {}

  std::optional<ConfigNode> find(const char* section, const char* key) const {
    const auto found = root_.at(kRoot).find(section);
    if (!found || found->is_null()) return std::nullopt;
    auto value = found->find(key);
    return value && !value->is_null() ? value : std::nullopt;
  }

  // Values may refer to values that refer to others. Limits on depth and on what all of them together put in keep a few short ones from
  // standing for gigabytes.
  std::string text_of(const ConfigNode& node) const {
    std::size_t replaced = 0;
    return text_of(node, 0, replaced);
  }

  std::string get(const char* section, const char* key, const std::string& fallback) const {
    const auto node = find(section, key);
    return node ? text_of(*node) : fallback;
  }
  int get(const char* section, const char* key, int fallback, int least) const {
    const auto node = find(section, key);
    if (!node) return fallback;
    // The number may stand behind a ${NAME}: it is read as such, and reported where it is used.
    const std::string word = text_of(*node);
    std::size_t used = 0;
    int value = 0;
    try {
      value = std::stoi(word, &used);
    } catch (const std::exception&) {}
    if (used == 0 || used != word.size() || value < least)
      throw node->error("found '" + word + "'", text("an integer of at least ", least));
    return value;
  }
  bool flag(const char* section, const char* key, bool fallback) const {
    const auto node = find(section, key);
    if (!node) return fallback;
    const std::string word = text_of(*node);
    if (word == "1" || word == "true" || word == "True") return true;
    if (word == "0" || word == "false" || word == "False") return false;
    throw node->error("found '" + word + "'", "0, 1, true or false");
  }
  std::string choice(const char* section, const char* key, const std::string& fallback, const std::vector<std::string>& valid) const {
    const std::string word = get(section, key, fallback);
    if (std::find(valid.begin(), valid.end(), word) != valid.end()) return word;
    throw find(section, key)->error("found '" + word + "'", fmt::format("one of {}", fmt::join(valid, ", ")), did_you_mean(word, valid));
  }
  const ConfigNode& root() const { return root_; }

 private:
  std::string text_of(const ConfigNode& node, int depth, std::size_t& replaced) const {
    constexpr int kDeepest = 16;
    constexpr std::size_t kMostReplaced = 1000;
    std::string value = node.as_string();
    for (std::size_t open; (open = value.find("${")) != std::string::npos;) {
      const std::size_t close = value.find('}', open);
      if (close == std::string::npos || depth > kDeepest || ++replaced > kMostReplaced)
        throw node.error("'" + value + "' does not end", "${NAME} of a value in this file");
      value.replace(open, close - open + 1, text_of(named(node, value.substr(open + 2, close - open - 2)), depth + 1, replaced));
    }
    return value;
  }
  ConfigNode named(const ConfigNode& user, const std::string& path) const {
    ConfigNode node = root_;
    for (std::size_t from = 0; from <= path.size();) {
      const std::size_t dot = std::min(path.find('.', from), path.size());
      const std::string part = path.substr(from, dot - from);
      if (!node.is_map() || !node.has(part))
        throw user.error("${" + path + "} names nothing in this file", {}, node.is_map() ? did_you_mean(part, node.keys()) : "");
      node = node.at(part);
      from = dot + 1;
    }
    return node;
  }
  ConfigNode root_;
};

// Galvatron reads the path from the folder it was started in; the YAML's own folder and its neighbours are tried as well.
std::filesystem::path model_yaml(const Settings& settings, const std::string& named) {
  const std::filesystem::path path(named), folder = settings.file.parent_path();
  if (path.is_absolute()) return first_existing("the model's YAML", {path});
  return first_existing("the model's YAML", {path, folder / path, folder / ".." / path, folder / path.filename()});
}

int model_number(const Options& options, const std::optional<ConfigNode>& model, const char* key) {
  if (options.find("model_info", key)) return options.get("model_info", key, 0, 1);
  const auto node = model ? model->find(key) : std::nullopt;
  if (node && !node->is_null()) return static_cast<int>(node->as_int_at_least(1));
  const std::string hint = text("give it there, or as search_engine.model_info.", key);
  if (model)
    throw Error(ErrorCode::invalid_config, text("the key '", key, "' is missing"), {model->file(), 0, 0, -1, {}}, "an integer", hint);
  throw Error(ErrorCode::invalid_config,
              text("neither search_engine.model_info.", key, " nor search_engine.model_info.model_config_path is given"),
              {options.root().file(), 0, 0, -1, {}}, "one of them");
}

void read_model(const Options& options, Settings& settings) {
  if (options.flag("model_info", "is_moe_model", false))
    throw options.find("model_info", "is_moe_model")
        ->error("experts are not part of this search", "false", "tessera plan TRAIN.yaml plans mixtures of experts");
  std::optional<ConfigNode> model;
  if (const auto path = options.find("model_info", "model_config_path"))
    model = ConfigNode::load(model_yaml(settings, options.text_of(*path)));
  settings.model = options.get("model_info", "model_size", model ? model->get("model_size", std::string("unknown")) : "unknown");
  settings.layers = model_number(options, model, "num_layers");
  settings.hidden = model_number(options, model, "hidden_size");
  settings.seq = options.get("common_train_info", "seq_length", 0, 1);
  if (settings.seq == 0) throw options.root().at(kRoot).error("common_train_info.seq_length is missing", "the tokens of a sample");
}

void read_batches(const Options& options, Settings& settings) {
  const char* section = "batch_size_info";
  settings.min_batch = options.get(section, "min_bsz", 8, 1);
  settings.max_batch = options.get(section, "max_bsz", 8, 1);
  settings.batch_step = options.get(section, "bsz_scale", 8, 1);
  const int batch = options.get(section, "settle_bsz", -1, -1), chunks = options.get(section, "settle_chunk", -1, -1);
  if (batch > 0) settings.settled_batch = batch;
  if (chunks > 0) settings.settled_chunks = chunks;
  if (settings.max_batch < settings.min_batch)
    throw options.find(section, "max_bsz")->error(text("is below min_bsz (", settings.min_batch, ")"), "max_bsz >= min_bsz");
}

void read_space(const Options& options, Settings& settings) {
  const char* section = "search_space_info";
  const auto off = [&](const char* key, bool fallback = false) { return options.flag(section, key, fallback); };
  settings.no_pp = off("disable_pp");
  settings.no_tp = off("disable_tp");
  settings.no_sp = off("disable_sp");
  settings.no_cp = off("disable_cp", true);
  settings.no_dp = off("disable_dp");
  settings.no_checkpoint = off("disable_ckpt");
  settings.no_zero3 = off("disable_fsdp");
  settings.no_embedding_tp = off("disable_embedding_lmhead_tp");
  settings.no_embedding_sp = off("disable_embedding_lmhead_sp");
  settings.max_pp = options.get(section, "max_pp_deg", 8, 1);
  settings.max_tp = options.get(section, "max_tp_deg", 8, 1);
  settings.max_sp = options.get(section, "max_sp_deg", 8, 1);
  settings.max_cp = options.get(section, "max_cp_deg", 8, 1);
}

void read_profiling(const Options& options, Settings& settings) {
  const char* section = "profiling_info";
  settings.time_profile_mode = options.choice(section, "time_profile_mode", "static", {"static", "batch", "sequence"});
  settings.memory_profile_mode = options.choice(section, "memory_profile_mode", "static", {"static", "sequence"});
  settings.time_folder = options.get(section, "time_profiling_path", "");
  settings.memory_folder = options.get(section, "memory_profiling_path", "");
  settings.all_reduce_folder = options.get(section, "allreduce_bandwidth_config_path", "");
  settings.p2p_folder = options.get(section, "p2p_bandwidth_config_path", "");
  settings.overlap_folder = options.get(section, "overlap_coe_path", "");
  settings.sp_time_folder = options.get(section, "sp_time_path", "");
}

}  // namespace

std::filesystem::path first_existing(const std::string& what, const std::vector<std::filesystem::path>& candidates) {
  std::vector<std::string> tried;
  for (const auto& candidate : candidates) {
    const auto path = candidate.lexically_normal();
    // A name that no file can have is not there either.
    std::error_code none;
    if (std::filesystem::is_regular_file(path, none)) return path;
    if (std::find(tried.begin(), tried.end(), path.string()) == tried.end()) tried.push_back(path.string());
  }
  throw Error(ErrorCode::not_found, text(what, " is not there"), {}, fmt::format("one of {}", fmt::join(tried, ", ")));
}

Settings read_settings(const std::filesystem::path& yaml, const std::vector<std::string>& overrides) {
  const Options options(with_overrides(ConfigNode::load(yaml), overrides));
  check_names(options.root());
  Settings settings;
  settings.file = yaml;
  settings.nodes = options.get("hardware_info", "num_nodes", 1, 1);
  settings.devices_per_node = options.get("hardware_info", "num_gpus_per_node", 8, 1);
  settings.memory_gb = options.get("hardware_info", "memory_constraint", 24, 1);
  read_model(options, settings);
  settings.sequence_parallel = options.flag("common_train_info", "sequence_parallel", true);
  settings.global_memory_buffer = options.flag("common_train_info", "global_memory_buffer", true);
  settings.default_dp_type = options.choice("parallelism_info", "default_dp_type", "ddp", {"ddp", "zero2", "zero3"});
  settings.pipedream_flush =
      options.choice("parallelism_info", "pipeline_type", "gpipe", {"gpipe", "pipedream_flush"}) == "pipedream_flush";
  settings.async_grad_reduce = options.flag("parallelism_info", "async_grad_reduce", true);
  settings.mixed_precision = options.choice("parallelism_info", "mixed_precision", "bf16", {"fp32", "fp16", "bf16"});
  read_batches(options, settings);
  read_space(options, settings);
  read_profiling(options, settings);
  settings.fine_grained = options.flag("options_info", "fine_grained_mode", true);
  if (const auto node = options.find("debug_info", "debug_costmodel_coe")) settings.time_coefficient = node->as_double();
  return settings;
}

}  // namespace tessera::interop::galvatron
