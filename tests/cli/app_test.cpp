// What the command answers before any subcommand does its work.
#include "cli/app.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/temporary_folder.hpp"
#include "cli/command_helper.hpp"

namespace tessera::cli {
namespace {

using testing::HasSubstr;

TEST(App, HelpListsEveryCommandUnderAHeading) {
  const CommandResult result = run_tessera({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("Start here:"));
  const auto app = make_app();
  for (const CLI::App* command : app->get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;  // what nobody types
    EXPECT_THAT(result.out, HasSubstr("\n  " + command->get_name() + " "));
    EXPECT_FALSE(command->get_description().empty()) << command->get_name();
    EXPECT_NE(command->get_group(), "Subcommands") << command->get_name() << " stands under no heading";
  }
}

TEST(App, WithoutACommandPrintsTheHelp) {
  const CommandResult result = run_tessera({});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, run_tessera({"--help"}).out);
}

TEST(App, SaysItsVersion) {
  const CommandResult result = run_tessera({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, testing::MatchesRegex("tessera [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(App, UnknownCommandNamesTheNearest) {
  const CommandResult result = run_tessera({"doctr"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("error: tessera has no command `doctr`\n"));
  EXPECT_THAT(result.err, HasSubstr("did you mean `doctor`?"));
}

TEST(App, UnknownCommandFarFromAllGuessesNothing) {
  const CommandResult result = run_tessera({"xyzzyplugh"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, testing::Not(HasSubstr("did you mean")));
  EXPECT_THAT(result.err, HasSubstr("`tessera --help`"));
}

TEST(App, UnknownOptionNamesTheNearestOfItsCommand) {
  const CommandResult result = run_tessera({"init", "--precison=bf16"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("tessera init has no option `--precison`"));
  EXPECT_THAT(result.err, HasSubstr("did you mean `--precision`?"));
}

TEST(App, UnknownCommandOfAFamilyNamesTheNearest) {
  const CommandResult result = run_tessera({"completion", "bsh"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("did you mean `bash`?"));
}

TEST(App, ErrorsAreOneJsonObjectOnStdoutWhenJsonIsWanted) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"doctr", "--json"}, {"init", "--json", "--size", "huge"}, {"init", "--json", "--source", "no-such-text"}}) {
    const CommandResult result = run_tessera(arguments);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    const nlohmann::json error = nlohmann::json::parse(result.out).at("error");
    EXPECT_TRUE(error.at("code") == "invalid_config" || error.at("code") == "not_found") << error;
    EXPECT_FALSE(error.at("message").get<std::string>().empty());
  }
}

TEST(App, SaysAllErrorsOfAFileAtOnce) {
  const TemporaryFolder folder;
  const std::string file = folder.write("train.yaml", "model: {preset: llama-2-7b, hiden: 3}\ntrain: {steps: 0}\n").string();
  const CommandResult spoken = run_tessera({"plan", file});
  EXPECT_EQ(spoken.exit_code, 2);
  EXPECT_THAT(spoken.err, testing::MatchesRegex("error: [^\n]*train.yaml:1:29: model: unknown key 'hiden'[^\n]*\n[^\n]*'hidden'[^\n]*\n"
                                                "error: [^\n]*train.yaml:2:16: train.steps: found 0[^\n]*\n"));
  const nlohmann::json written = nlohmann::json::parse(run_tessera({"plan", file, "--json"}).out);
  EXPECT_EQ(written.at("errors").size(), 2U);
  EXPECT_EQ(written.at("error"), written.at("errors")[0]);
}

TEST(App, ColoursErrorsOnATerminalUnlessRefused) {
  const auto shown = [](const std::vector<std::pair<std::string, std::string>>& environment) {
    OnTerminal terminal({tessera_path(), "doctr"}, {{}, environment});
    EXPECT_EQ(terminal.end(), 2);
    return terminal.shown();
  };
  EXPECT_THAT(shown({{"NO_COLOR", ""}}), HasSubstr("\033[1;31merror:\033[0m tessera has no command `doctr`"));
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{{"NO_COLOR", "1"}, {"TERM", "dumb"}})
    EXPECT_THAT(shown({{name, value}}), testing::AllOf(HasSubstr("error: tessera has no command"), testing::Not(HasSubstr("\033["))));
}

TEST(App, WritesNoColourToAFile) { EXPECT_THAT(run_tessera({"doctr"}).err, testing::Not(HasSubstr("\033["))); }

TEST(App, EveryCommandExplainsItself) {
  const auto app = make_app();
  for (const CLI::App* command : app->get_subcommands([](const CLI::App*) { return true; })) {
    const CommandResult result = run_tessera({command->get_name(), "--help"});
    EXPECT_EQ(result.exit_code, 0) << command->get_name();
    EXPECT_THAT(result.out, HasSubstr("Usage: ")) << command->get_name();
  }
}

}  // namespace
}  // namespace tessera::cli
