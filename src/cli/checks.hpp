// Internal: what the value of an option may be. A refusal says what was found and what was expected.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>

namespace tessera::cli {

CLI::Validator whole_number(std::int64_t least, std::int64_t most = std::numeric_limits<std::int64_t>::max());
// A finite one.
CLI::Validator number(double least, double most = std::numeric_limits<double>::max());
CLI::Validator number_above_zero();

}  // namespace tessera::cli
