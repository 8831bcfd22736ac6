// The whole `tessera` command as one function.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

namespace tessera::cli {

// The app with every subcommand, not yet parsed. Building it touches no file and no device.
std::unique_ptr<CLI::App> make_app();

// Parses, runs the chosen subcommand and returns the exit code. Errors go to stderr as "error: FILE:LINE: what; expected …",
// then a line of advice; with --json among the arguments, to stdout as one JSON object. Never throws.
int run(int argc, const char* const* argv);

}  // namespace tessera::cli
