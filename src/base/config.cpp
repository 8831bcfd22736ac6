#include "base/config.hpp"

#include <yaml-cpp/yaml.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/file_system.hpp"
#include "base/problems.hpp"

namespace tessera {

struct ConfigNode::Document {
  std::string name;
  YAML::Node root;
  // What `root` was made of: a changed document is read again, because a copied tree has no lines.
  std::string source;
  struct Override {
    std::string key;  // as it was written
    std::string value;
    std::string path;  // of what it has set
  };
  std::vector<Override> overrides;
};

struct ConfigNode::Value {
  YAML::Node node;
};

namespace {

std::string kind_of(const YAML::Node& node) {
  if (node.IsMap()) return "a map";
  if (node.IsSequence()) return "a list";
  if (node.IsNull()) return "nothing";
  return "'" + node.Scalar() + "'";
}

std::string list_of(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

// Bytes of the UTF-8 sequence at the beginning of `rest`, which is not empty; 0 when it is none (The Unicode Standard, table 3-7).
std::size_t utf8_step(std::string_view rest) {
  const auto lead = static_cast<unsigned char>(rest[0]);
  if (lead < 0x80) return 1;
  const std::size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length > rest.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(rest[i]);
    const unsigned least = i > 1 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned most = i > 1 ? 0xBF : lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte < least || byte > most) return 0;
  }
  return length;
}

// What is no text would be read, but could not be written again.
void require_utf8(std::string_view source, const std::string& name) {
  int line = 1;
  for (std::size_t at = 0, step = 0; at < source.size(); at += step) {
    step = utf8_step(source.substr(at));
    if (step == 0) throw Error(ErrorCode::invalid_config, "not a text in UTF-8", {name, line, 0, -1, {}}, {}, "save it in that encoding");
    if (source[at] == '\n') ++line;
  }
}

bool is_utf8(std::string_view words) {
  for (std::size_t step = 0; !words.empty(); words.remove_prefix(step))
    if (step = utf8_step(words); step == 0) return false;
  return true;
}

YAML::Node yaml_of(const std::string& source, const std::string& name) {
  require_utf8(source, name);
  try {
    return YAML::Load(source);
  } catch (const YAML::Exception& problem) {
    throw Error(ErrorCode::invalid_config, "not valid YAML: " + problem.msg,
                {name, problem.mark.line + 1, problem.mark.column + 1, -1, {}});
  }
}

// Aliases let a short text stand for any number of values, even for itself; whatever walks over the values would not end.
// Without them a text has as many values as it says, and the parser bounds how deep they are.
constexpr std::int64_t kMostValues = 1'000'000;
constexpr int kDeepest = 500;

void require_countable(const YAML::Node& node, const std::string& name, std::int64_t& left, int depth) {
  const auto refuse = [&](const std::string& message, const std::string& expected) {
    const YAML::Mark mark = node.Mark();
    throw Error(ErrorCode::invalid_config, message,
                {name, mark.line >= 0 ? mark.line + 1 : 0, mark.line >= 0 ? mark.column + 1 : 0, -1, {}}, expected);
  };
  if (--left < 0) refuse(tessera::text("its aliases stand for more than ", kMostValues, " values"), "fewer aliases ('*name') of aliases");
  if (depth > kDeepest)
    refuse(tessera::text("values are nested more than ", kDeepest, " deep"), "no value that holds an alias ('*name') of itself");
  for (const auto& entry : node) {
    if (!node.IsMap()) {
      require_countable(entry, name, left, depth + 1);
      continue;
    }
    require_countable(entry.first, name, left, depth + 1);
    require_countable(entry.second, name, left, depth + 1);
  }
}

void require_countable(const YAML::Node& root, const std::string& name) {
  std::int64_t left = kMostValues;
  require_countable(root, name, left, 0);
}

// Whether "a.b[0].c" is at or below "a.b".
bool is_within(const std::string& path, const std::string& root) {
  return path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '.' || path[root.size()] == '[');
}

// Of an entry of a list, named by its index or by its `name`.
std::size_t index_of(const YAML::Node& list, const std::string& key, const std::string& dotted_key) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const bool named = list[i].IsMap() && list[i]["name"].IsDefined() && list[i]["name"].IsScalar();
    names.push_back(tessera::text(i));
    if (named) names.push_back(list[i]["name"].Scalar());
    if (key == tessera::text(i) || (named && key == names.back())) return i;
  }
  const auto guess = nearest(key, names);
  throw Error(ErrorCode::invalid_config, "--set " + dotted_key + ": the list has no entry '" + key + "'", {}, "one of: " + list_of(names),
              guess ? "did you mean '" + *guess + "'?" : std::string());
}

// Returns the path of what it has set: "groups[0].nodes" for the key "groups.0.nodes".
std::string set_value(const YAML::Node& root, const std::string& dotted_key, const YAML::Node& value) {
  YAML::Node node = root;
  std::string path;
  std::string_view rest = dotted_key;
  for (;;) {
    const std::size_t dot = rest.find('.');
    const std::string key(rest.substr(0, dot));
    if (key.empty()) throw Error(ErrorCode::invalid_config, "--set " + dotted_key + ": empty key", {}, "SECTION.KEY=VALUE");
    YAML::Node next;
    if (node.IsSequence()) {
      const std::size_t index = index_of(node, key, dotted_key);
      path += tessera::text('[', index, ']');
      next.reset(node[index]);
    } else {
      path += (path.empty() ? "" : ".") + key;
      next.reset(node[key]);
    }
    if (dot == std::string_view::npos) {
      next = value;
      return path;
    }
    // A scalar on the way ("parallel: auto") gives way to the map that the user now names.
    if (!next.IsDefined() || !(next.IsMap() || next.IsSequence())) next = YAML::Node(YAML::NodeType::Map);
    node.reset(next);
    rest.remove_prefix(dot + 1);
  }
}

// Plain scalars become numbers, booleans and null as YAML 1.2's core schema reads them; quoted ones stay strings.
nlohmann::ordered_json json_of(const YAML::Node& node) {
  if (node.IsMap()) {
    auto out = nlohmann::ordered_json::object();
    for (const auto& entry : node) out[entry.first.Scalar()] = json_of(entry.second);
    return out;
  }
  if (node.IsSequence()) {
    auto out = nlohmann::ordered_json::array();
    for (const auto& entry : node) out.push_back(json_of(entry));
    return out;
  }
  if (node.IsNull()) return nullptr;
  if (node.Tag() != "!") {
    std::int64_t integer = 0;
    double real = 0;
    bool flag = false;
    if (YAML::convert<std::int64_t>::decode(node, integer)) return integer;
    if (YAML::convert<double>::decode(node, real) && std::isfinite(real)) return real;
    if ((node.Scalar() == "true" || node.Scalar() == "false") && YAML::convert<bool>::decode(node, flag)) return flag;
  }
  return node.Scalar();
}

}  // namespace

ConfigNode::ConfigNode(std::shared_ptr<const Document> document, std::shared_ptr<const Value> value, std::string path)
    : document_(std::move(document)), value_(std::move(value)), path_(std::move(path)) {}

ConfigNode ConfigNode::load(const std::filesystem::path& path) { return parse(read_whole(path), path.string()); }

ConfigNode ConfigNode::parse(std::string_view text, const std::string& name) {
  auto document = std::make_shared<Document>();
  document->name = name;
  document->source = text;
  document->root = yaml_of(document->source, name);
  if (document->source.find('*') != std::string::npos) require_countable(document->root, name);
  auto value = std::make_shared<Value>(Value{document->root});
  return {std::move(document), std::move(value), {}};
}

bool ConfigNode::is_map() const { return value_->node.IsMap(); }
bool ConfigNode::is_sequence() const { return value_->node.IsSequence(); }
bool ConfigNode::is_scalar() const { return value_->node.IsScalar(); }
bool ConfigNode::is_null() const { return value_->node.IsNull(); }

Where ConfigNode::where() const {
  const YAML::Mark mark = value_->node.Mark();
  const bool in_file = mark.line >= 0;
  for (auto set = document_->overrides.rbegin(); set != document_->overrides.rend() && !path_.empty(); ++set)
    if (is_within(path_, set->path) || (!in_file && is_within(set->path, path_)))
      return {tessera::text("--set ", set->key, '=', set->value), 0, 0, -1, {}};
  return {document_->name, in_file ? mark.line + 1 : 0, in_file ? mark.column + 1 : 0, -1, {}};
}

const std::string& ConfigNode::file() const { return document_->name; }

Error ConfigNode::error(const std::string& message, const std::string& expected, const std::string& hint) const {
  return {ErrorCode::invalid_config, path_.empty() ? message : path_ + ": " + message, where(), expected, hint};
}

bool ConfigNode::has(std::string_view key) const { return find(key).has_value(); }

std::optional<ConfigNode> ConfigNode::find(std::string_view key) const {
  if (value_->node.IsNull()) return std::nullopt;
  if (!is_map()) throw error("found " + kind_of(value_->node), "a map with the key '" + std::string(key) + "'");
  for (const auto& entry : value_->node)
    if (entry.first.IsScalar() && entry.first.Scalar() == key)
      return ConfigNode(document_, std::make_shared<Value>(Value{entry.second}),
                        path_.empty() ? std::string(key) : path_ + "." + std::string(key));
  return std::nullopt;
}

ConfigNode ConfigNode::at(std::string_view key) const {
  if (auto found = find(key)) return *found;
  throw error("the key '" + std::string(key) + "' is missing");
}

std::vector<std::string> ConfigNode::keys() const {
  std::vector<std::string> out;
  if (value_->node.IsNull()) return out;
  if (!is_map()) throw error("found " + kind_of(value_->node), "a map");
  for (const auto& entry : value_->node) out.push_back(entry.first.IsScalar() ? entry.first.Scalar() : std::string("?"));
  return out;
}

void ConfigNode::allow_only(std::initializer_list<std::string_view> valid) const {
  allow_only(std::vector<std::string>(valid.begin(), valid.end()));
}

void ConfigNode::allow_only(const std::vector<std::string>& names) const {
  if (value_->node.IsNull()) return;
  if (!is_map()) throw error("found " + kind_of(value_->node), "a map");
  std::vector<std::string> seen;
  Problems problems;
  for (const auto& entry : value_->node) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : std::string("?");
    const Where place = ConfigNode(document_, std::make_shared<Value>(Value{entry.first}), path_.empty() ? key : path_ + "." + key).where();
    const auto keep = [&](const std::string& message, const std::string& expected, const std::string& hint) {
      problems.keep({ErrorCode::invalid_config, path_.empty() ? message : path_ + ": " + message, place, expected, hint});
    };
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      keep("the key '" + key + "' stands twice", {}, {});
    } else if (std::find(names.begin(), names.end(), key) == names.end()) {
      const auto guess = nearest(key, names);
      keep("unknown key '" + key + "'", "one of: " + list_of(names), guess ? "did you mean '" + *guess + "'?" : std::string());
    }
    seen.push_back(key);
  }
  problems.raise();
}

std::size_t ConfigNode::size() const {
  if (!is_sequence()) throw error("found " + kind_of(value_->node), "a list");
  return value_->node.size();
}

ConfigNode ConfigNode::operator[](std::size_t index) const {
  if (index >= size()) throw error(tessera::text("has ", size(), " entries; entry ", index, " was asked for"));
  return {document_, std::make_shared<Value>(Value{value_->node[index]}), tessera::text(path_, "[", index, "]")};
}

std::vector<ConfigNode> ConfigNode::items() const {
  std::vector<ConfigNode> out;
  for (std::size_t i = 0; i < size(); ++i) out.push_back((*this)[i]);
  return out;
}

std::string ConfigNode::as_string() const {
  if (!is_scalar()) throw error("found " + kind_of(value_->node), "a text");
  const std::string& words = value_->node.Scalar();
  // The parser makes single bytes of the escapes \N and \_.
  if (!is_utf8(words)) throw error("found bytes that are not UTF-8", "a text", "write \\u0085 for \\N and \\u00a0 for \\_");
  return words;
}

std::int64_t ConfigNode::as_int() const {
  std::int64_t out = 0;
  if (is_scalar()) {
    const std::string& scalar = value_->node.Scalar();
    const auto [end, problem] = std::from_chars(scalar.data(), scalar.data() + scalar.size(), out);
    if (end == scalar.data() + scalar.size()) {
      if (problem == std::errc()) return out;
      if (problem == std::errc::result_out_of_range) throw error("found " + kind_of(value_->node), "a whole number of at most 18 digits");
    }
  }
  throw error("found " + kind_of(value_->node), "a whole number");
}

double ConfigNode::as_double() const {
  double out = 0;
  if (!is_scalar() || !YAML::convert<double>::decode(value_->node, out) || !std::isfinite(out))
    throw error("found " + kind_of(value_->node), "a number");
  return out;
}

bool ConfigNode::as_bool() const {
  if (is_scalar() && value_->node.Scalar() == "true") return true;
  if (is_scalar() && value_->node.Scalar() == "false") return false;
  throw error("found " + kind_of(value_->node), "true or false");
}

std::int64_t ConfigNode::as_bytes() const {
  const std::string expected = "a size such as 512 MiB, 16GB or 1048576";
  if (!is_scalar()) throw error("found " + kind_of(value_->node), expected);
  const std::string& scalar = value_->node.Scalar();
  double number = 0;
  const auto [end, problem] = std::from_chars(scalar.data(), scalar.data() + scalar.size(), number);
  std::string unit(end, scalar.data() + scalar.size());
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  constexpr std::pair<const char*, double> units[] = {
      {"", 1},     {"B", 1},    {"KiB", 1024.}, {"MiB", 1048576.}, {"GiB", 1073741824.}, {"TiB", 1099511627776.},
      {"KB", 1e3}, {"kB", 1e3}, {"MB", 1e6},    {"GB", 1e9},       {"TB", 1e12}};
  for (const auto& [name, factor] : units) {
    if (problem == std::errc() && unit == name && number >= 0 && number * factor < 9e18) return static_cast<std::int64_t>(number * factor);
  }
  throw error("found " + kind_of(value_->node), expected);
}

std::string ConfigNode::as_choice(std::initializer_list<std::string_view> valid) const {
  return as_choice(std::vector<std::string>(valid.begin(), valid.end()));
}

std::string ConfigNode::as_choice(const std::vector<std::string>& names) const {
  const std::string word = as_string();
  if (std::find(names.begin(), names.end(), word) != names.end()) return word;
  const auto guess = nearest(word, names);
  throw error("found '" + word + "'", "one of: " + list_of(names), guess ? "did you mean '" + *guess + "'?" : std::string());
}

std::int64_t ConfigNode::as_int_at_least(std::int64_t least) const {
  const std::int64_t value = as_int();
  if (value < least) throw error(tessera::text("found ", value), tessera::text("a whole number of at least ", least));
  return value;
}

std::int64_t ConfigNode::as_int_between(std::int64_t least, std::int64_t most) const {
  const std::int64_t value = as_int_at_least(least);
  if (value > most) throw error(tessera::text("found ", value), tessera::text("at most ", most));
  return value;
}

std::string ConfigNode::get(std::string_view key, const std::string& fallback) const {
  const auto node = find(key);
  return node ? node->as_string() : fallback;
}
std::int64_t ConfigNode::get(std::string_view key, std::int64_t fallback) const {
  const auto node = find(key);
  return node ? node->as_int() : fallback;
}
double ConfigNode::get(std::string_view key, double fallback) const {
  const auto node = find(key);
  return node ? node->as_double() : fallback;
}
bool ConfigNode::get(std::string_view key, bool fallback) const {
  const auto node = find(key);
  return node ? node->as_bool() : fallback;
}

ConfigNode ConfigNode::with_override(std::string_view dotted_key, std::string_view value) const {
  auto document = std::make_shared<Document>(
      Document{document_->name, yaml_of(document_->source, document_->name), document_->source, document_->overrides});
  require_utf8(dotted_key, "--set");
  document->overrides.push_back({std::string(dotted_key), std::string(value), {}});
  if (!document->root.IsMap() && !document->root.IsNull())
    throw error("found " + kind_of(document->root), "a map, so that '" + std::string(dotted_key) + "' can be set");
  if (document->root.IsNull()) document->root = YAML::Node(YAML::NodeType::Map);
  for (auto& [key, setting, path] : document->overrides)
    path = set_value(document->root, key, yaml_of(setting, tessera::text("--set ", key, '=', setting)));
  require_countable(document->root, tessera::text("--set ", dotted_key, '=', value));
  auto root = std::make_shared<Value>(Value{document->root});
  return {std::move(document), std::move(root), {}};
}

std::string ConfigNode::to_yaml() const { return YAML::Dump(value_->node) + "\n"; }
std::string ConfigNode::to_json() const {
  return json_of(value_->node).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  // The beginning of a name is meant as that, however long the rest.
  constexpr std::size_t kBeginning = 3;
  for (const auto& candidate : candidates)
    if (word.size() >= kBeginning && candidate.starts_with(word) && (!best || candidate.size() < best->size())) best = candidate;
  if (best) return best;
  std::size_t best_distance = std::numeric_limits<std::size_t>::max();
  for (const auto& candidate : candidates) {
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      std::size_t diagonal = std::exchange(row[0], i);
      for (std::size_t j = 1; j < row.size(); ++j) {
        const std::size_t substitution = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  const std::size_t limit = std::max<std::size_t>(2, word.size() / 3);
  return best && best_distance <= limit ? best : std::nullopt;
}

}  // namespace tessera
