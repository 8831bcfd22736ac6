#include "observe/config_difference.hpp"

#include <nlohmann/json.hpp>
#include <set>

namespace tessera::observe {
namespace {

using Json = nlohmann::ordered_json;

void flatten(const Json& value, const std::string& path, std::map<std::string, std::string>& out) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, member] : value.items()) flatten(member, path.empty() ? key : path + "." + key, out);
  } else {
    out[path] = value.is_string() ? value.get<std::string>() : value.dump();
  }
}

}  // namespace

std::map<std::string, std::string> settings_of(const ConfigNode& root) {
  std::map<std::string, std::string> out;
  flatten(Json::parse(root.to_json()), {}, out);
  return out;
}

std::vector<ConfigDifference> differences(const std::map<std::string, std::string>& first,
                                          const std::map<std::string, std::string>& second) {
  std::set<std::string> keys;
  for (const auto& [key, value] : first) keys.insert(key);
  for (const auto& [key, value] : second) keys.insert(key);
  const auto value_in = [](const std::map<std::string, std::string>& settings, const std::string& key) {
    const auto found = settings.find(key);
    return found == settings.end() ? std::string() : found->second;
  };
  std::vector<ConfigDifference> out;
  for (const std::string& key : keys)
    if (const ConfigDifference difference{key, value_in(first, key), value_in(second, key)}; difference.first != difference.second)
      out.push_back(difference);
  return out;
}

}  // namespace tessera::observe
