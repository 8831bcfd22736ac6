#include <CLI/CLI.hpp>
#include <iostream>

#include "cli/commands.hpp"
#include "cli/completion.hpp"

namespace tessera::cli {

void add_completion_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("completion", "Print a completion script for your shell")->group(kToolGroup);
  command->require_subcommand(1);
  command->footer(
      "In ~/.bashrc or ~/.zshrc:      source <(tessera completion bash)\n"
      "In ~/.config/fish/config.fish: tessera completion fish | source");
  const auto add = [&](const std::string& shell, std::string (*script)(const std::vector<CompletionCommand>&)) {
    command->add_subcommand(shell, "for " + shell)->callback([&app, script] { std::cout << script(describe(app)); });
  };
  add("bash", bash_completion);
  add("zsh", zsh_completion);
  add("fish", fish_completion);
}

}  // namespace tessera::cli
