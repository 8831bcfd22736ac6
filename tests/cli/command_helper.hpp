// Runs the tessera command that was built beside these tests.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/temporary_folder.hpp"

namespace tessera::cli {

struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};

struct CommandOptions {
  std::filesystem::path folder;                                  // to run in; empty: here
  std::vector<std::pair<std::string, std::string>> environment;  // added to this process's
};

// Waits for its end, at most a minute; then it is killed and the test fails. No stdin.
CommandResult run_command(std::vector<std::string> arguments, const CommandOptions& options = {});
CommandResult run_tessera(std::vector<std::string> arguments, const CommandOptions& options = {});
std::string tessera_path();

// A script that can be run.
std::filesystem::path write_program(const TemporaryFolder& folder, const std::string& name, const std::string& script);

}  // namespace tessera::cli
