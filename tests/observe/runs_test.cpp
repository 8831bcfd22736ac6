#include "observe/runs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "base/temporary_folder.hpp"
#include "observe/run.hpp"
#include "plan/plan.hpp"

namespace tessera::observe {
namespace {

void write(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::create_directories(path.parent_path());
  write_whole(real_file_system(), path, content);
}

// Losses fall from `loss` by 0.5 a step.
void make_run(const std::filesystem::path& run, const std::string& lr, double loss, double seconds) {
  write(run / "train.yaml",
        "name: " + run.filename().string() + "\nmodel: {arch: llama, hidden: 64}\ntrain: {steps: 10, optimizer: {lr: " + lr + "}}\n");
  plan::Plan plan;
  plan.micro_batches = 4;
  plan.global_batch = 8;
  plan.ranks.resize(4);
  plan.stages = {{{0, 1}, {{0, 3, {.dp = 2, .zero = 1}}}}, {{2, 3}, {{3, 6, {.dp = 2, .zero = 1}}}}};
  write(run / "plan.json", plan::to_json(plan));
  RunWriter writer(run, 0, 0);
  for (int step = 0; step < 5; ++step) {
    const double slow = step == 2 ? 10 : 1;
    writer.step({step, loss - 0.5 * step, 1000, seconds * slow, 1000 / (seconds * slow), 0.4, 1.0, 1e-3, 0.1, (1 + step) << 20});
  }
  writer.evaluation({2, loss - 0.25});
  writer.evaluation({5, loss});
  write(run / "checkpoints/step-000002/manifest.json", "{}");
  write(run / "checkpoints/step-000005/manifest.json", "{}");
  write(run / "checkpoints/step-000007.tmp/manifest.json", "{}");
}

TEST(Runs, SummaryComesFromTheFiles) {
  const TemporaryFolder folder;
  make_run(folder.path() / "a", "1.0e-3", 5.0, 0.5);
  const RunSummary run = summarize(folder.path() / "a/");
  EXPECT_EQ(run.name, "a");
  EXPECT_EQ(run.steps, 5);
  EXPECT_EQ(run.planned_steps, 10);
  EXPECT_EQ(run.tokens, 5000);
  EXPECT_EQ(run.final_loss, 3.0);
  EXPECT_EQ(run.best_validation_loss, 4.75);
  EXPECT_EQ(run.step_seconds, 0.5);
  EXPECT_EQ(run.tokens_per_s, 2000);
  EXPECT_EQ(run.memory, 5 << 20);
  EXPECT_EQ(run.checkpoints, (std::vector<std::int64_t>{2, 5}));
  EXPECT_EQ(run.plan, "dp 2 x pp 2 x tp 1, zero 1, 4 micro-batches, 1f1b");
}

TEST(Runs, ListLeavesOutWhatCannotBeRead) {
  const TemporaryFolder folder;
  make_run(folder.path() / "b", "1.0e-3", 5.0, 0.5);
  make_run(folder.path() / "a", "1.0e-3", 5.0, 0.5);
  make_run(folder.path() / "broken", "1.0e-3", 5.0, 0.5);
  write(folder.path() / "broken/metrics.jsonl", "nonsense\n");
  write(folder.path() / "notes/readme.txt", "no run");
  const auto runs = list_runs(folder.path());
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].name, "a");
  EXPECT_THAT(to_table(runs), testing::HasSubstr("b    stopped  5/10   3.0000  4.7500    2.00 k tokens/s  5"));
  EXPECT_THAT(to_table(list_runs(folder.path() / "nowhere")), testing::HasSubstr("no runs yet"));
  const auto json = nlohmann::json::parse(to_json(runs));
  EXPECT_EQ(json.at("runs").size(), 2u);
  EXPECT_EQ(json.at("runs").at(1).at("final_loss"), 3.0);
}

TEST(Runs, ComparisonShowsWhatDiffers) {
  const TemporaryFolder folder;
  make_run(folder.path() / "a", "1.0e-3", 5.0, 0.5);
  make_run(folder.path() / "b", "2.0e-3", 4.0, 0.25);
  const RunComparison comparison = compare_runs(folder.path() / "a", folder.path() / "b");
  ASSERT_EQ(comparison.config.size(), 1u);
  EXPECT_EQ(comparison.config[0].key, "train.optimizer.lr");
  EXPECT_EQ(comparison.config[0].first, "0.001");
  EXPECT_EQ(comparison.config[0].second, "0.002");
  const std::string table = to_table(comparison);
  EXPECT_THAT(table, testing::ContainsRegex("final loss +3.0000 +2.0000 +-1.0000"));
  EXPECT_THAT(table, testing::ContainsRegex("speed +2.00 k tokens/s +4.00 k tokens/s +2.00 x"));
  EXPECT_THAT(table, testing::ContainsRegex("train.optimizer.lr +0.001 +0.002"));
  const auto json = nlohmann::json::parse(to_json(comparison));
  EXPECT_EQ(json.at("config").at(0).at("key"), "train.optimizer.lr");
  EXPECT_EQ(json.at("second").at("name"), "b");
  EXPECT_THAT(to_table(compare_runs(folder.path() / "a", folder.path() / "a")), testing::HasSubstr("say the same"));
}

TEST(Runs, TheStateSaysHowFarARunCame) {
  const TemporaryFolder folder;
  const auto run = folder.path() / "a";
  const auto state = [&] { return summarize(run).state; };
  write(run / "train.yaml", "name: a\nmodel: {arch: llama}\ntrain: {steps: 10}\n");
  write(run / "log.txt",
        "2026-01-31 12:00:00.000 info: an error: no\n2026-01-31 12:00:01.000 error: the disk\n  is full\n2026-01-31 12:00:02.000 info: "
        "end\n");
  EXPECT_EQ(state(), RunState::stopped);  // it went on after the error
  EXPECT_EQ(summarize(run).last_error, "the disk");
  const std::string log = read_whole(run / "log.txt");
  write(run / "log.txt", log + "2026-01-31 12:00:03.000 error: no network\n  for an hour\n");
  EXPECT_EQ(state(), RunState::failed);
  EXPECT_THAT(to_table(summarize(run)), testing::AllOf(testing::ContainsRegex("state +failed"), testing::HasSubstr("no network")));
  {
    const RunLock lock(run);
    EXPECT_EQ(state(), RunState::running);
  }
  write(run / "log.txt", log);
  write(run / "checkpoints/step-000000/manifest.json", "{}");
  EXPECT_EQ(state(), RunState::imported);
  make_run(run, "1.0e-3", 5.0, 0.5);
  EXPECT_EQ(state(), RunState::stopped);
  write(run / "log.txt", log + "2026-01-31 12:00:03.000 error: no network\n");
  EXPECT_EQ(state(), RunState::failed);
  RunWriter(run, 5, 5).evaluation({.step = 5, .loss = 4, .stops_early = true});
  EXPECT_EQ(state(), RunState::complete);
  RunWriter(run, 5, 5).evaluation({.step = 5, .loss = 4});
  write(run / "train.yaml", "name: a\nmodel: {arch: llama}\ntrain: {steps: 5}\n");
  EXPECT_EQ(state(), RunState::complete);
}

TEST(Runs, ARenamedRunGoesOnUnderItsNewName) {
  const TemporaryFolder folder;
  const auto old = folder.path() / "old";
  make_run(old, "1.0e-3", 5.0, 0.5);
  write(old / "train.yaml",
        "name: old\nmodel: {arch: llama}\ndata: {source: /text, tokenizer: {kind: hf, file: " + (old / "tokenizer.json").string() + "}}\n");
  rename_run(old, folder.path() / "new");
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_EQ(summarize(folder.path() / "new").steps, 5);
  const std::string yaml = read_whole(folder.path() / "new/train.yaml");
  EXPECT_THAT(yaml, testing::HasSubstr("name: new"));
  EXPECT_THAT(yaml, testing::HasSubstr((folder.path() / "new/tokenizer.json").string()));
  make_run(old, "1.0e-3", 5.0, 0.5);
  EXPECT_THROW(rename_run(folder.path() / "new", old), Error);
  const RunLock lock(old);
  EXPECT_THROW(rename_run(old, folder.path() / "newer"), Error);
  EXPECT_TRUE(std::filesystem::exists(old / "metrics.jsonl"));
}

TEST(Runs, AFolderThatIsNoRunIsAnError) {
  const TemporaryFolder folder;
  EXPECT_THROW(summarize(folder.path()), Error);
}

}  // namespace
}  // namespace tessera::observe
