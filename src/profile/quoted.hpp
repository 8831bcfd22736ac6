// Internal to profile: words as JSON files hold them, and as YAML reads them too.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tessera::profile {

inline std::string quoted(const std::string& words) { return nlohmann::json(words).dump(); }

}  // namespace tessera::profile
