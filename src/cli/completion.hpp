// Shell completion scripts from the app tree itself, so that they cannot fall behind it.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tessera::cli {

// What can stand where a value is expected.
struct ValueKind {
  enum class Kind { free, choices, file, folder, run } kind = Kind::free;  // run: the name of a folder in runs/
  std::vector<std::string> choices;
};

struct CompletionOption {
  std::vector<std::string> names;  // "--output", "-o"
  std::string description;
  std::vector<ValueKind> values;  // one after the other
};

struct CompletionCommand {
  std::string path;  // "tessera data pack"
  std::string description;
  std::vector<CompletionOption> options;
  std::vector<ValueKind> positionals;
  std::vector<std::string> children;  // names
};

// The command itself and all below it, parents first; hidden ones (group "") are left out.
std::vector<CompletionCommand> describe(const CLI::App& app);

std::string bash_completion(const std::vector<CompletionCommand>& commands);
std::string zsh_completion(const std::vector<CompletionCommand>& commands);
std::string fish_completion(const std::vector<CompletionCommand>& commands);

}  // namespace tessera::cli
