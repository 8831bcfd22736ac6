// Internal to plan: how a plan is refused.
#pragma once

#include <string>

#include "base/error.hpp"

namespace tessera::plan {

// Throws invalid_config.
[[noreturn]] inline void refuse(const Where& where, const std::string& message, const std::string& expected, const std::string& hint = {}) {
  throw Error(ErrorCode::invalid_config, "the plan cannot run: " + message, where, expected, hint);
}

}  // namespace tessera::plan
