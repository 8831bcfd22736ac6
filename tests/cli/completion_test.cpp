// The generated completion scripts, asked by the shells themselves.
#include "cli/completion.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "cli/app.hpp"
#include "cli/command_helper.hpp"

namespace tessera::cli {
namespace {

using testing::Contains;
using testing::IsSupersetOf;

// A shell that has read the script, at its prompt. `tessera` prints its arguments there.
class Shell {
 public:
  Shell(const std::string& name, const std::filesystem::path& folder) {
    const std::map<std::string, std::vector<std::string>> commands = {
        {"bash", {"bash", "--norc", "--noprofile", "-i"}}, {"zsh", {"zsh", "-f", "-i"}}, {"fish", {"fish", "--no-config", "-i"}}};
    const std::map<std::string, std::string> preparations = {
        {"bash", "tessera() { printf 'TYPED'; printf '<%s>' \"$@\"; echo; }; source <('" + tessera_path() + "' completion bash)"},
        {"zsh", "autoload -Uz compinit && compinit -u -D; tessera() { printf 'TYPED'; printf '<%s>' \"$@\"; echo; }; source <('" +
                    tessera_path() + "' completion zsh)"},
        {"fish", "function tessera; printf TYPED; printf '<%s>' $argv; echo; end; '" + tessera_path() + "' completion fish | source"}};
    const CommandOptions options{folder,
                                 {{"HOME", folder.string()}, {"XDG_CONFIG_HOME", folder.string()}, {"XDG_DATA_HOME", folder.string()}}};
    terminal_ = std::make_unique<OnTerminal>(commands.at(name), options);
    terminal_->type(preparations.at(name) + "; echo rea''dy\n");
    terminal_->shows("ready");
  }

  // Types the words, a Tab behind them and Enter, and returns what tessera was then called with: "<train><job.yaml>".
  std::string completed(const std::string& words) {
    terminal_->type(words + "\t");
    terminal_->type("\n");
    if (!terminal_->shows("TYPED<")) return {};
    const std::size_t begin = terminal_->shown().rfind("TYPED<") + 5;
    terminal_->shows(">\r\n");
    std::string arguments = terminal_->shown().substr(begin, terminal_->shown().find("\r\n", begin) - begin);
    // zsh takes the slash behind a folder away again when Enter follows.
    if (const std::size_t slash = arguments.rfind("/>"); slash != std::string::npos) arguments.erase(slash, 1);
    return arguments;
  }

 private:
  std::unique_ptr<OnTerminal> terminal_;
};

TEST(Completion, DescribesEveryCommandAndOption) {
  const auto app = make_app();
  const std::vector<CompletionCommand> commands = describe(*app);
  std::vector<std::string> paths;
  for (const CompletionCommand& command : commands) paths.push_back(command.path);
  EXPECT_THAT(paths, IsSupersetOf({"tessera", "tessera doctor", "tessera init", "tessera completion", "tessera completion fish"}));
  for (const CLI::App* command : app->get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;  // what nobody types
    EXPECT_THAT(paths, Contains("tessera " + command->get_name()));
  }
}

class InShell : public testing::TestWithParam<const char*> {
 protected:
  InShell() {
    for (const char* file : {"runs/first/train.yaml", "runs/second/train.yaml", "job.yaml", "notes/two words.txt"}) folder_.write(file, "");
  }
  TemporaryFolder folder_;
};

TEST_P(InShell, CompletesCommandsOptionsAndChoices) {
  Shell shell(GetParam(), folder_.path());
  EXPECT_EQ(shell.completed("tessera doct"), "<doctor>");
  EXPECT_EQ(shell.completed("tessera completion z"), "<completion><zsh>");
  EXPECT_EQ(shell.completed("tessera init --prec"), "<init><--precision>");
  EXPECT_EQ(shell.completed("tessera init --yes --precision b"), "<init><--yes><--precision><bf16>");
}

TEST_P(InShell, CompletesRuns) {
  Shell shell(GetParam(), folder_.path());
  EXPECT_EQ(shell.completed("tessera eval fi"), "<eval><first>");
  EXPECT_EQ(shell.completed("tessera runs compare first se"), "<runs><compare><first><second>");
}

TEST_P(InShell, CompletesFormatsAndThenTheirFilesAndFolders) {
  Shell shell(GetParam(), folder_.path());
  EXPECT_EQ(shell.completed("tessera export first --to h"), "<export><first><--to><hf>");
  EXPECT_EQ(shell.completed("tessera export first --to hf no"), "<export><first><--to><hf><notes>");
  EXPECT_EQ(shell.completed("tessera plan job.yaml --write mega"), "<plan><job.yaml><--write><megatron>");
  EXPECT_EQ(shell.completed("tessera plan --write megatron jo"), "<plan><--write><megatron><job.yaml>");
}

TEST_P(InShell, CompletesFilesWhoseNamesHoldSpaces) {
  Shell shell(GetParam(), folder_.path());
  EXPECT_EQ(shell.completed("tessera train jo"), "<train><job.yaml>");
  EXPECT_EQ(shell.completed("tessera init --source notes/tw"), "<init><--source><notes/two words.txt>");
}

INSTANTIATE_TEST_SUITE_P(Completion, InShell, testing::Values("bash", "zsh", "fish"), [](const auto& shell) { return shell.param; });

}  // namespace
}  // namespace tessera::cli
