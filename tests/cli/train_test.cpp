// What is refused before a worker is started, and what stays on the disk.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "cli/command_helper.hpp"

namespace tessera::cli {
namespace {

using testing::HasSubstr;

TEST(TrainCommand, RefusesAPlanWhoseRanksWouldWaitForEachOther) {
  const TemporaryFolder folder;
  folder.write("train.yaml",
               "name: job\nmodel: {arch: llama, hidden: 64, layers: 6, heads: 4, kv_heads: 4, ffn: 128, seq: 32, vocab: 256}\ndata: "
               "{source: synthetic}\n"
               "train: {steps: 1, global_batch: 2}\ncluster: {local: {devices: 2}}\nparallel: {dp: 1, tp: 1, pp: 2, micro_batches: 2, "
               "schedule: 1f1b}\n");
  const CommandOptions inside{folder.path(), {}};
  ASSERT_EQ(run_tessera({"plan", "train.yaml", "-o", "plan.json"}, inside).exit_code, 0);
  std::string plan = read_whole(folder / "plan.json");
  // The first rank wants a gradient that the second will not make before it has the second micro-batch.
  plan.insert(plan.find("\"bucket_bytes\""),
              "\"order\": [[\"F0.0\", \"B0.0\", \"F0.1\", \"B0.1\"], [\"F0.0\", \"F0.1\", \"B0.0\", \"B0.1\"]], ");
  folder.write("plan.json", plan);
  const CommandResult result = run_tessera({"train", "train.yaml", "--plan", "plan.json"}, inside);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("never completes: the ranks wait for each other"));
}

// What the trainer does otherwise than the model says is refused by name, before anything is measured or started.
TEST(TrainCommand, RefusesWhatItComputesOrKeepsOtherwise) {
  const std::pair<const char*, const char*> said[] = {{"attention: unfused", "attention: fused"}, {"keeps: autograd", "keeps: tessera"}};
  for (const auto& [key, expected] : said) {
    const TemporaryFolder folder;
    folder.write("train.yaml",
                 text("name: job\nmodel: {arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 4, ffn: 128, seq: 32, vocab: 256, ", key,
                      "}\ndata: {source: synthetic}\ntrain: {steps: 1, global_batch: 2}\n"));
    const CommandResult result = run_tessera({"train", "train.yaml"}, CommandOptions{folder.path(), {}});
    EXPECT_EQ(result.exit_code, 2) << key;
    EXPECT_THAT(result.err, HasSubstr(text("the model says ", key)));
    EXPECT_THAT(result.err, HasSubstr(text("expected ", expected)));
    EXPECT_FALSE(std::filesystem::exists(folder / "runs"));
  }
}

TEST(TrainCommand, RefusesANameThatNoFolderCanHave) {
  const TemporaryFolder folder;
  folder.write(
      "train.yaml",
      "name: a b\nmodel: {arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 4, ffn: 128, seq: 32, vocab: 256}\ndata: {source: "
      "synthetic}\n");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"train", "train.yaml"}, std::vector<std::string>{"train", "train.yaml", "--set", "name=a/b"}}) {
    const CommandResult result = run_tessera(arguments, {folder.path(), {}});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("cannot name a folder of runs/"));
    EXPECT_FALSE(std::filesystem::exists(folder / "runs"));
  }
}

TEST(ProfileCommand, MeasuresNoAccelerators) {
  const TemporaryFolder folder;
  folder.write("gpus.yaml",
               "name: gpus\ngroups:\n  - {name: a, device: a100-80, nodes: 1, devices_per_node: 8, inside: nvlink3, network: rdma-100g}\n");
  folder.write("train.yaml",
               "model: {arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 4, ffn: 128, seq: 32, vocab: 256}\ndata: {source: "
               "synthetic}\ncluster: gpus.yaml\n");
  const CommandResult result = run_tessera({"profile", "train.yaml", "-o", "profile.json"}, {folder.path(), {}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("cluster 'gpus' has no CPU workers that could train this job"));
  EXPECT_FALSE(std::filesystem::exists(folder / "profile.json"));
}

TEST(Scratch, OfAKilledProcessGoesWithTheNextStart) {
  const TemporaryFolder place;
  const CommandOptions there{place.path(), {{"TMPDIR", place.path().string()}}};
  place.write("tessera-scratch-abc123/profile.json", "{}");
  place.write("someone-elses/file", "");
  std::filesystem::create_directory(place / "tessera-scratch-def456");
  const int living = ::open((place / "tessera-scratch-def456").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(living, LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(run_tessera({"--version"}, there).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(place / "tessera-scratch-abc123"));
  EXPECT_TRUE(std::filesystem::exists(place / "tessera-scratch-def456"));
  EXPECT_TRUE(std::filesystem::exists(place / "someone-elses/file"));
  ::close(living);
  EXPECT_EQ(run_tessera({"runs"}, there).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(place / "tessera-scratch-def456"));
}

// Folders on the way to what a command writes are made, and asked for before the work.
TEST(Outputs, GoIntoFoldersThatDoNotExist) {
  const TemporaryFolder folder;
  const CommandOptions inside{folder.path(), {}};
  folder.write("train.yaml",
               "model: {arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 4, ffn: 128, seq: 32, vocab: 256}\ndata: {source: "
               "synthetic}\ntrain: {global_batch: 8}\n");
  EXPECT_EQ(run_tessera({"plan", "train.yaml", "-o", "made/plan.json", "--html", "made/too/plan.html"}, inside).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "made/plan.json"));
  EXPECT_TRUE(std::filesystem::exists(folder / "made/too/plan.html"));
  EXPECT_EQ(run_tessera({"simulate", "train.yaml", "--plan", "made/plan.json", "--trace", "traces/one.json"}, inside).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "traces/one.json"));
  EXPECT_EQ(run_tessera({"init", "--yes", "--source", "synthetic", "-o", "jobs/one.yaml"}, inside).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "jobs/one.yaml"));
  const CommandResult refused = run_tessera({"plan", "train.yaml", "-o", "train.yaml/plan.json"}, inside);
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.err, HasSubstr("cannot write train.yaml/plan.json: Not a directory"));
}

TEST(Settings, ThatContradictOrMeanSomethingElseAreAnswered) {
  const TemporaryFolder folder;
  folder.write("train.yaml",
               "model: {arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 4, ffn: 128, seq: 32, vocab: 256}\ndata: {source: "
               "synthetic}\ncluster: {local: {devices: 1, threads: 1}}\n");
  const std::pair<const char*, const char*> cases[] = {
      {"parallel.threads=2", "parallel.threads: found 2, and cluster.local.threads is 1"},
      {"cluster=atuo", "did you mean 'auto'?"},
      {"train.optimizer.lr=1e308", "expected a number of at most 1e+12"},
      {"train.steps=99999999999999999999999", "expected a whole number of at most 18 digits"}};
  for (const auto& [setting, said] : cases) {
    const CommandResult result = run_tessera({"plan", "train.yaml", "--set", setting}, {folder.path(), {}});
    EXPECT_EQ(result.exit_code, 2) << setting;
    EXPECT_THAT(result.err, HasSubstr(said));
  }
}

}  // namespace
}  // namespace tessera::cli
