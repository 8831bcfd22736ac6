// `tessera init` writes a file that training accepts, asks again after wrong answers, and overwrites nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/file_system.hpp"
#include "cli/command_helper.hpp"
#include "cli/init_template.hpp"
#include "model/job.hpp"

namespace tessera::cli {
namespace {

using testing::HasSubstr;

TEST(Init, NamesTheNextCommandAsItWasCalled) {
  const TemporaryFolder folder;
  folder.write("text.txt", "to be or not to be\n");
  const CommandResult result = run_tessera({"init", "--yes", "--source", "text.txt"}, {folder.path(), {{"TESSERA_COMMAND", "./dev run"}}});
  EXPECT_THAT(result.out, HasSubstr("\n  ./dev run train train.yaml\n"));
}

TEST(Init, WritesAFileThatTrainingAccepts) {
  for (const SizePreset& size : size_presets()) {
    for (const std::string precision : {"fp32", "bf16"}) {
      const TemporaryFolder folder;
      folder.write("text.txt", "to be or not to be\n");
      const CommandResult result = run_tessera(
          {"init", "--yes", "--source", "text.txt", "--size", size.name, "--vocab", "2048", "--steps", "77", "--precision", precision},
          {folder.path(), {}});
      ASSERT_EQ(result.exit_code, 0) << result.err;
      EXPECT_THAT(result.out, HasSubstr("tessera train train.yaml"));
      const model::JobSpec job = model::read_job(folder.path() / "train.yaml");
      EXPECT_EQ(job.train.steps, 77);
      EXPECT_EQ(job.model.dim("hidden"), size.hidden);
      EXPECT_EQ(job.model.dim("vocab"), 2048);
      EXPECT_EQ(job.data.tokenizer.vocab, 2048);
      EXPECT_EQ(job.data.sources.at(0).path.filename(), "text.txt");
      EXPECT_EQ(job.train.precision, precision == "bf16" ? model::Precision::bf16 : model::Precision::f32);
      EXPECT_EQ(job.cluster.kind, model::ClusterChoice::Kind::automatic);
      EXPECT_EQ(job.parallel.kind, model::ParallelChoice::Kind::automatic);
    }
  }
}

TEST(Init, KeepsPathsWithQuotesAndSpaces) {
  const TemporaryFolder folder;
  folder.write("my \"text\": #1.txt", "words\n");
  ASSERT_EQ(run_tessera({"init", "--yes", "--source", "my \"text\": #1.txt"}, {folder.path(), {}}).exit_code, 0);
  EXPECT_EQ(model::read_job(folder.path() / "train.yaml").data.sources.at(0).path.filename(), "my \"text\": #1.txt");
}

TEST(Init, NamesTheTextAsSeenFromTheFileThatItWrites) {
  const TemporaryFolder folder;
  const auto text = folder.write("texts/a.txt", "words\n");
  std::filesystem::create_directory(folder / "jobs");
  ASSERT_EQ(run_tessera({"init", "--yes", "--source", "texts/a.txt", "-o", "jobs/train.yaml"}, {folder.path(), {}}).exit_code, 0);
  const model::JobSpec job = model::read_job(folder / "jobs" / "train.yaml");
  EXPECT_TRUE(std::filesystem::equivalent(job.data.sources.at(0).path, text)) << job.data.sources.at(0).path;
}

TEST(Init, RefusesToOverwriteAndLeavesTheFileAsItWas) {
  const TemporaryFolder folder;
  const auto existing = folder.write("train.yaml", "mine\n");
  folder.write("text.txt", "words\n");
  const CommandResult result = run_tessera({"init", "--yes", "--source", "text.txt"}, {folder.path(), {}});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("train.yaml exists already"));
  EXPECT_EQ(read_whole(existing), "mine\n");
}

TEST(Init, WithoutATextSaysWhatItNeeds) {
  const TemporaryFolder folder;
  const CommandResult result = run_tessera({"init", "--yes"}, {folder.path(), {}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--source"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "train.yaml"));
}

TEST(Init, JsonNamesTheFileAndTheNextCommand) {
  const TemporaryFolder folder;
  folder.write("text.txt", "words\n");
  const CommandResult result = run_tessera({"init", "--json", "--source", "text.txt", "-o", "a.yaml"}, {folder.path(), {}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report.at("file"), "a.yaml");
  EXPECT_EQ(report.at("next"), "tessera train a.yaml");
}

TEST(Init, AFolderThatIsNotThereIsAnIoError) {
  const TemporaryFolder folder;
  folder.write("text.txt", "words\n");
  const CommandResult result = run_tessera({"init", "--yes", "--source", "text.txt", "-o", "none/train.yaml"}, {folder.path(), {}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("none/train.yaml"));
}

// Answers each question on a terminal; returns all that was shown, and the exit code.
std::pair<std::string, int> interview(const std::filesystem::path& folder, const std::vector<std::string>& answers) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    if (chdir(folder.c_str()) != 0) _exit(126);
    execl(tessera_path().c_str(), "tessera", "init", nullptr);
    _exit(127);
  }
  std::string shown;
  std::size_t answered = 0;
  std::array<char, 4096> buffer;
  for (;;) {
    pollfd ready{terminal, POLLIN, 0};
    if (poll(&ready, 1, 30000) <= 0) {
      ADD_FAILURE() << "no more questions after: " << shown;
      kill(child, SIGKILL);
      break;
    }
    const ssize_t count = read(terminal, buffer.data(), buffer.size());
    if (count <= 0) break;
    shown.append(buffer.data(), static_cast<std::size_t>(count));
    if (shown.ends_with("] ") && answered < answers.size()) {
      const std::string line = answers[answered++] + "\n";
      EXPECT_EQ(write(terminal, line.data(), line.size()), static_cast<ssize_t>(line.size()));
    }
  }
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  return {shown, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
}

TEST(Init, AsksOnATerminalAndAsksAgainAfterAWrongAnswer) {
  const TemporaryFolder folder;
  folder.write("text.txt", "words\n");
  const auto [shown, exit_code] = interview(folder.path(), {"nothing.txt", "text.txt", "smal", "tiny", "ten", "512", "", "fp16", "bf16"});
  EXPECT_EQ(exit_code, 0) << shown;
  EXPECT_THAT(shown, HasSubstr("there is no nothing.txt here"));
  EXPECT_THAT(shown, HasSubstr("did you mean `small`?"));
  EXPECT_THAT(shown, HasSubstr("at least 257"));
  EXPECT_THAT(shown, HasSubstr("expected fp32 or bf16"));
  const model::JobSpec job = model::read_job(folder.path() / "train.yaml");
  EXPECT_EQ(job.model.dim("hidden"), 128);
  EXPECT_EQ(job.model.dim("vocab"), 512);
  EXPECT_EQ(job.train.steps, 200);
  EXPECT_EQ(job.train.precision, model::Precision::bf16);
}

}  // namespace
}  // namespace tessera::cli
