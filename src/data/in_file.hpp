// internal: a place in a file, for errors.
#pragma once

#include <filesystem>

#include "base/error.hpp"

namespace tessera::data {

inline Where in_file(const std::filesystem::path& file, int line = 0) {
  Where where;
  where.file = file.string();
  where.line = line;
  return where;
}

}  // namespace tessera::data
