#pragma once

#include <functional>
#include <string>

#include "base/error.hpp"

namespace tessera::ps {

// The code and the words of what a call throws; empty where it throws nothing.
inline std::string told(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.what();
  }
  return {};
}

}  // namespace tessera::ps
