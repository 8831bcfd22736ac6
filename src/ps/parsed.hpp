// Internal. JSON from another process.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"

namespace tessera::ps {

// What `read` makes of `words`. Throws Error(corrupt), which says what it was that cannot be read.
template <typename Read>
auto parsed(const std::string& words, const char* what, const Read& read) {
  try {
    return read(nlohmann::json::parse(words));
  } catch (const nlohmann::json::exception& problem) {
    throw Error(ErrorCode::corrupt, text(what, " cannot be read: ", problem.what()));
  }
}

}  // namespace tessera::ps
