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

// Waits for its end, at most four minutes; then it is killed and the test fails. No stdin.
CommandResult run_command(std::vector<std::string> arguments, const CommandOptions& options = {});
CommandResult run_tessera(std::vector<std::string> arguments, const CommandOptions& options = {});
std::string tessera_path();

// A program on a terminal of its own, of 80 columns, that a user types into. What stays behind is ended with the object.
class OnTerminal {
 public:
  OnTerminal(std::vector<std::string> arguments, const CommandOptions& options = {});
  ~OnTerminal();
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  // Waits until `words` are shown behind what was waited for before, at most four minutes; false, and the test fails, when they are not.
  bool shows(const std::string& words);
  // As if typed: "\n" is Enter, "\x03" Ctrl-C, "\t" Tab.
  void type(const std::string& keys);
  // Waits for the end; its exit code, or 128 + the signal.
  int end();
  // All that was shown so far.
  const std::string& shown() const { return shown_; }

 private:
  bool read_some();

  pid_t child_ = -1;
  int terminal_ = -1;
  std::string shown_;
  std::size_t seen_ = 0;
};

// A script that can be run.
std::filesystem::path write_program(const TemporaryFolder& folder, const std::string& name, const std::string& script);

}  // namespace tessera::cli
