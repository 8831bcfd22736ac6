// What two train.yamls differ in.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/config.hpp"

namespace tessera::observe {

// One key; an empty value stands for a key that is not there.
struct ConfigDifference {
  std::string key;  // "train.optimizer.lr"
  std::string first;
  std::string second;
};

// "train.optimizer.lr" -> "0.0003" for each value that is no map.
std::map<std::string, std::string> settings_of(const ConfigNode& root);
// By key.
std::vector<ConfigDifference> differences(const std::map<std::string, std::string>& first,
                                          const std::map<std::string, std::string>& second);

}  // namespace tessera::observe
