// tessera runs: what it lists, shows, renames and deletes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/command_helper.hpp"

namespace tessera::cli {
namespace {

using testing::HasSubstr;

// A run that has made two of ten steps, and a start that failed.
struct TwoRuns {
  TemporaryFolder folder;
  CommandOptions inside{folder.path(), {}};

  TwoRuns() {
    folder.write("runs/first/train.yaml", "name: first\nmodel: {arch: llama}\ntrain: {steps: 10}\n");
    folder.write("runs/first/metrics.jsonl", "{\"step\": 0, \"loss\": 5, \"tokens\": 8}\n{\"step\": 1, \"loss\": 4, \"tokens\": 8}\n");
    folder.write("runs/first/checkpoints/step-000002/manifest.json", "{}");
    folder.write("runs/second/train.yaml", "name: second\nmodel: {arch: llama}\n");
    folder.write("runs/second/log.txt", "2026-01-31 12:00:00.000 error: no plan fits\n");
  }
};

TEST(RunsCommand, ListsRunsAndMarksStartsThatFailed) {
  const TwoRuns runs;
  const CommandResult list = run_tessera({"runs"}, runs.inside);
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_THAT(list.out, testing::ContainsRegex("first +stopped +2/10 "));
  EXPECT_THAT(list.out, testing::ContainsRegex("second +failed +0/200 "));
  EXPECT_EQ(run_tessera({"runs", "--folder", "runs"}, runs.inside).out, list.out);
  const CommandResult nowhere = run_tessera({"runs", "--folder", "nope"}, runs.inside);
  EXPECT_EQ(nowhere.exit_code, 3);
  EXPECT_THAT(nowhere.err, HasSubstr("nope: there is no such folder"));
  const TemporaryFolder empty;
  EXPECT_THAT(run_tessera({"runs"}, {empty.path(), {}}).out, HasSubstr("no runs yet"));
}

TEST(RunsCommand, ShowsOneRun) {
  const TwoRuns runs;
  const CommandResult first = run_tessera({"runs", "show", "first"}, runs.inside);
  EXPECT_THAT(first.out, testing::ContainsRegex("checkpoints +2\n"));
  EXPECT_THAT(first.out, testing::ContainsRegex("final loss +4.0000\n"));
  const CommandResult second = run_tessera({"runs", "show", "runs/second", "--json"}, runs.inside);
  const auto json = nlohmann::json::parse(second.out);
  EXPECT_EQ(json.at("state"), "failed");
  EXPECT_EQ(json.at("last_error"), "no plan fits");
  const CommandResult unknown = run_tessera({"runs", "show", "frist"}, runs.inside);
  EXPECT_EQ(unknown.exit_code, 3);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'first'?"));
}

TEST(RunsCommand, RenamesARun) {
  const TwoRuns runs;
  const CommandResult taken = run_tessera({"runs", "rename", "first", "second"}, runs.inside);
  EXPECT_EQ(taken.exit_code, 2);
  EXPECT_THAT(taken.err, HasSubstr("a run of this name exists"));
  const CommandResult renamed = run_tessera({"runs", "rename", "first", "third"}, runs.inside);
  EXPECT_EQ(renamed.exit_code, 0) << renamed.err;
  EXPECT_EQ(renamed.out, "runs/first is runs/third now\n");
  EXPECT_FALSE(std::filesystem::exists(runs.folder / "runs/first"));
  EXPECT_THAT(run_tessera({"runs"}, runs.inside).out, testing::ContainsRegex("third +stopped +2/10 "));
}

TEST(RunsCommand, DeletesOnlyWhatWasConfirmed) {
  const TwoRuns runs;
  const CommandResult unasked = run_tessera({"runs", "delete", "first"}, runs.inside);
  EXPECT_EQ(unasked.exit_code, 2);
  EXPECT_THAT(unasked.err, HasSubstr("nothing was deleted"));
  EXPECT_THAT(unasked.err, HasSubstr("--yes"));
  EXPECT_EQ(run_tessera({"runs", "delete", "first", "nothing", "--yes"}, runs.inside).exit_code, 3);
  EXPECT_TRUE(std::filesystem::exists(runs.folder / "runs/first/metrics.jsonl"));
  const CommandResult deleted = run_tessera({"runs", "delete", "first", "second", "--yes"}, runs.inside);
  EXPECT_EQ(deleted.out, "deleted runs/first\ndeleted runs/second\n");
  EXPECT_TRUE(std::filesystem::is_empty(runs.folder / "runs"));
}

}  // namespace
}  // namespace tessera::cli
