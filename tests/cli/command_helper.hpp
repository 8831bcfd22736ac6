// Runs the tessera command that was built beside these tests.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tessera::cli {

struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};

struct CommandOptions {
  std::filesystem::path folder;                                     // to run in; empty: here
  std::vector<std::pair<std::string, std::string>> environment;     // added to this process's
};

// Waits for its end, at most a minute; then it is killed and the test fails. No stdin.
CommandResult run_command(std::vector<std::string> arguments, const CommandOptions& options = {});
CommandResult run_tessera(std::vector<std::string> arguments, const CommandOptions& options = {});
std::string tessera_path();

// A folder of its own, gone with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  // Writes a file into it and returns its path; `executable` for scripts.
  std::filesystem::path write(const std::string& name, const std::string& content, bool executable = false) const;

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::cli
