#pragma once

#include <CLI/CLI.hpp>

namespace tessera::cli {

// `tessera runs [--folder runs] [--json]`, `runs show RUN`, `compare A B`, `rename RUN NAME` and `delete RUN...`; runs are names in the
// folder or paths.
void add_runs_command(CLI::App& app);

}  // namespace tessera::cli
