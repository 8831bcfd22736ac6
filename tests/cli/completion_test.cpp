// The generated completion scripts, asked by the shells themselves.
#include "cli/completion.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cli/app.hpp"
#include "cli/command_helper.hpp"

namespace tessera::cli {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsSupersetOf;

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty()) lines.push_back(line.substr(0, line.find('\t')));
  }
  return lines;
}

bool has(const std::string& program) { return run_command({"sh", "-c", "command -v " + program}).exit_code == 0; }

// What bash offers for the last of `words`.
std::vector<std::string> in_bash(const std::vector<std::string>& words, const CommandOptions& options = {}) {
  std::string array;
  for (const std::string& word : words) array += "'" + word + "' ";
  const std::string script = "source <('" + tessera_path() + "' completion bash)\nCOMP_WORDS=(" + array +
                             ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_tessera\nprintf '%s\\n' \"${COMPREPLY[@]}\"";
  const CommandResult result = run_command({"bash", "-c", script}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return lines_of(result.out);
}

std::vector<std::string> in_fish(const std::string& line, const CommandOptions& options = {}) {
  const CommandResult result =
      run_command({"fish", "-c", "'" + tessera_path() + "' completion fish | source; complete -C '" + line + "'"}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return lines_of(result.out);
}

TEST(Completion, DescribesEveryCommandAndOption) {
  const auto app = make_app();
  const std::vector<CompletionCommand> commands = describe(*app);
  std::vector<std::string> paths;
  for (const CompletionCommand& command : commands) paths.push_back(command.path);
  EXPECT_THAT(paths, IsSupersetOf({"tessera", "tessera doctor", "tessera init", "tessera completion", "tessera completion fish"}));
  for (const CLI::App* command : app->get_subcommands([](const CLI::App*) { return true; })) {
    EXPECT_THAT(paths, Contains("tessera " + command->get_name()));
  }
}

TEST(Completion, BashOffersCommandsThenOptionsThenChoices) {
  EXPECT_THAT(in_bash({"tessera", "d"}), Contains("doctor"));
  EXPECT_THAT(in_bash({"tessera", "completion", ""}), ElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(in_bash({"tessera", "init", "--"}), IsSupersetOf({"--output", "--size", "--precision"}));
  EXPECT_THAT(in_bash({"tessera", "init", "--precision", ""}), ElementsAre("fp32", "bf16"));
  EXPECT_THAT(in_bash({"tessera", "init", "--yes", "--precision", "b"}), ElementsAre("bf16"));
}

TEST(Completion, BashOffersFilesWhoseNamesHoldSpaces) {
  const TemporaryFolder folder;
  folder.write("two words.txt", "");
  EXPECT_THAT(in_bash({"tessera", "init", "--source", "tw"}, {folder.path(), {}}), ElementsAre("two words.txt"));
}

TEST(Completion, FishOffersCommandsThenOptionsThenChoices) {
  if (!has("fish")) GTEST_SKIP() << "fish is not installed";
  const TemporaryFolder home;
  const CommandOptions options{home.path(), {{"HOME", home.path().string()}, {"XDG_CONFIG_HOME", home.path().string()}}};
  EXPECT_THAT(in_fish("tessera ", options), IsSupersetOf({"doctor", "init", "completion"}));
  EXPECT_THAT(in_fish("tessera init --", options), IsSupersetOf({"--output", "--size", "--precision"}));
  EXPECT_THAT(in_fish("tessera init --precision ", options), testing::UnorderedElementsAre("fp32", "bf16"));
}

TEST(Completion, ZshReadsItsScript) {
  if (!has("zsh")) GTEST_SKIP() << "zsh is not installed";
  // The stubs stand in for zsh's completion system, which wants a terminal.
  const std::string script =
      "compdef() { }\n_describe() { shift; print -l ${(P)1} }\n_files() { print files }\n_message() { print message }\n"
      "source <('" +
      tessera_path() +
      "' completion zsh)\n"
      "words=(tessera init --precision ''); CURRENT=4; compadd() { shift; print -l -- $@ }; _tessera\n"
      "words=(tessera d); CURRENT=2; _tessera\n";
  const CommandResult result = run_command({"zsh", "-f", "-c", script});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(lines_of(result.out), IsSupersetOf({"fp32", "bf16", "doctor:What this host has, what is missing, and how to get it"}));
}

}  // namespace
}  // namespace tessera::cli
