#include "profile/extent.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "profile/quoted.hpp"

namespace tessera::profile {
namespace {

constexpr double kMostQuantity = 1e18;

// In YAML's words, which are JSON's here.
// Reads back as the same number: a plan at the end of a range is within it.
std::string exact(double value) {
  constexpr double kWhole = 1e15;
  if (value == std::floor(value) && value < kWhole) return text(static_cast<std::int64_t>(value));
  std::ostringstream out;
  out.precision(17);
  out << value;
  return out.str();
}

std::string list(const std::set<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + quoted(word);
  return "[" + out + "]";
}

void read_words(const ConfigNode& node, const char* key, std::set<std::string>& into) {
  if (const auto words = node.find(key))
    for (const ConfigNode& word : words->items()) into.insert(word.as_string());
}

}  // namespace

Range Range::around(const Range& a, const Range& b) { return {std::min(a.least, b.least), std::max(a.most, b.most)}; }

const std::vector<Quantity>& quantities() {
  static const std::vector<Quantity> all = {
      {"devices", "", true},
      {"inside", "", true},
      {"network", "", true},
      {"parameters", "", true},
      {"sequence", "attention", true},
      {"expert_width", "matrix products", true},
      {"tokens", "matrix products", false},
      {"tensor", "tensor-parallel exchange", false},
      {"ring", "context-parallel exchange", false},
      {"ulysses", "context-parallel exchange", false},
      {"experts", "expert exchange", false},
      {"replicas", "gradient exchange", false},
      {"zero-1", "gradient exchange", false},
      {"zero-2", "gradient exchange", false},
      {"zero-3", "parameter exchange", false},
      {"1f1b", "bubble", false},
      {"gpipe", "bubble", false},
      {"interleaved", "bubble", false},
      {"zb-h1", "bubble", false},
      {"zb-h2", "bubble", false},
      {"zb-v", "bubble", false},
      {"dualpipe-v", "bubble", false},
      {"chunks", "messages between stages", false},
  };
  return all;
}

bool is_combined(const std::string& name) {
  if (quantity(name).given) return false;
  return name != "tokens" && name != "chunks";
}

const Quantity& quantity(const std::string& name) {
  for (const Quantity& one : quantities())
    if (name == one.name) return one;
  throw Error(ErrorCode::internal, text("no quantity is called '", name, "'"));
}

void Extent::add(const std::string& name, double value) {
  const Range range{value, value};
  const auto [at, fresh] = ranges.try_emplace(name, range);
  if (!fresh) at->second = Range::around(at->second, range);
}

void Extent::combine() {
  std::set<std::string> all;
  for (const auto& [name, range] : ranges)
    if (is_combined(name)) all.insert(name);
  together.clear();
  if (all.size() > 1) together.insert(std::move(all));
}

bool Extent::had_together(const std::set<std::string>& wanted) const {
  return std::any_of(together.begin(), together.end(),
                     [&](const std::set<std::string>& one) { return std::includes(one.begin(), one.end(), wanted.begin(), wanted.end()); });
}

void Extent::add(const Extent& other) {
  for (const std::set<std::string>& names : other.together) {
    if (had_together(names)) continue;
    std::erase_if(together, [&](const auto& one) { return std::includes(names.begin(), names.end(), one.begin(), one.end()); });
    together.insert(names);
  }
  for (const auto& [name, range] : other.ranges) {
    const bool known = ranges.contains(name);
    const bool open = assumed.contains(name);
    const bool also_open = other.assumed.contains(name);
    if (!known) {
      if (also_open) assumed.insert(name);
      ranges[name] = range;
    } else if (open == also_open) {
      ranges[name] = Range::around(ranges[name], range);
    } else if (open) {
      assumed.erase(name);
      ranges[name] = range;
    }
  }
  for (const std::string& word : other.with) {
    if (!with.insert(word).second) {
      if (!other.assumed.contains(word)) assumed.erase(word);
    } else if (other.assumed.contains(word)) {
      assumed.insert(word);
    }
  }
}

Extent read_extent(const ConfigNode& node) {
  std::vector<std::string> names = {"with", "together", "assumed"};
  for (const Quantity& one : quantities()) names.emplace_back(one.name);
  node.allow_only(names);
  Extent out;
  for (const std::string& key : node.keys()) {
    if (key == "with" || key == "together" || key == "assumed") continue;
    const ConfigNode value = node.at(key);
    if (!value.is_sequence() || value.size() != 2) throw value.error("found no range", "[least, most]");
    const Range range{value[0].as_double(), value[1].as_double()};
    if (!(range.least >= 0 && range.least <= range.most && range.most <= kMostQuantity))
      throw value.error(text("found [", range.least, ", ", range.most, "]"), text("[least, most], numbers from 0 to ", kMostQuantity));
    out.ranges[key] = range;
  }
  read_words(node, "with", out.with);
  if (const auto all = node.find("together"))
    for (const ConfigNode& names_together : all->items()) {
      std::set<std::string> one;
      for (const ConfigNode& name : names_together.items()) {
        if (!out.ranges.contains(name.as_string()) || !is_combined(name.as_string()))
          throw name.error(text("'", name.as_string(), "' is no exchange or schedule that has a range here"));
        one.insert(name.as_string());
      }
      Extent only;
      if (one.size() > 1) only.together.insert(std::move(one));
      out.add(only);
    }
  read_words(node, "assumed", out.assumed);
  for (const std::string& word : out.assumed)
    if (!out.ranges.contains(word) && !out.with.contains(word))
      throw node.at("assumed").error(text("'", word, "' is neither a range nor in `with`"), "what is assumed has been measured so");
  return out;
}

std::string to_yaml(const Extent& extent) {
  std::string out;
  for (const Quantity& one : quantities())
    if (const auto found = extent.ranges.find(one.name); found != extent.ranges.end())
      out += text("  ", one.name, ": [", exact(found->second.least), ", ", exact(found->second.most), "]\n");
  if (!extent.with.empty()) out += text("  with: ", list(extent.with), "\n");
  std::string all;
  for (const std::set<std::string>& one : extent.together) all += (all.empty() ? "" : ", ") + list(one);
  if (!all.empty()) out += text("  together: [", all, "]\n");
  if (!extent.assumed.empty()) out += text("  assumed: ", list(extent.assumed), "\n");
  return out;
}

}  // namespace tessera::profile
