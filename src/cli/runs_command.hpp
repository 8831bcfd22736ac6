#pragma once

#include <CLI/CLI.hpp>

namespace tessera::cli {

// `tessera runs [--folder runs] [--json]` and `tessera runs compare A B [--json]`; A and B are names in the folder or paths.
void add_runs_command(CLI::App& app);

}  // namespace tessera::cli
