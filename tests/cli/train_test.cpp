// tessera train: what is refused before a worker is started.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tessera::cli
