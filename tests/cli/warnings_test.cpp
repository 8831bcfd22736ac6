// What is allowed, and perhaps not meant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/command_helper.hpp"

namespace tessera::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kJob = R"(name: job
model: {arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 4, ffn: 128, seq: 8, vocab: 257}
data: {source: text.txt, tokenizer: {kind: bytes}}
train: {steps: 10, global_batch: 4}
cluster: {local: {devices: 2, threads: 1}}
)";

class Warnings : public testing::Test {
 protected:
  CommandResult run(std::vector<std::string> arguments) {
    folder_.write("train.yaml", kJob);
    return run_tessera(std::move(arguments), {folder_.path(), {}});
  }
  TemporaryFolder folder_;
};

TEST_F(Warnings, AWarmUpBeyondTheLastStep) {
  const std::string said = "warning: train.schedule.warmup is 20 and train.steps 10: the run ends before its learning rate has reached";
  const CommandResult result = run({"plan", "train.yaml", "--set", "train.schedule.warmup=20"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr(said));
  // `train` says it before it does anything; here it has no plan.
  EXPECT_THAT(run({"train", "train.yaml", "--set", "train.schedule.warmup=20", "--plan", "no.json"}).err, HasSubstr(said));
  EXPECT_THAT(run({"plan", "train.yaml", "--set", "train.schedule.warmup=10"}).err, Not(HasSubstr("warning")));
}

TEST_F(Warnings, MoreThreadsThanCores) {
  const CommandResult result = run({"plan", "train.yaml", "--set", "cluster={local: {devices: 2, threads: 1000}}"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              testing::ContainsRegex("warning: .* workers? with (1|2)000 threads in all share the [0-9]+ cores? of a host of "));
}

TEST_F(Warnings, CarriageReturnsInATextOnce) {
  std::string text;
  for (int line = 0; line < 100; ++line) text += "to be or not to be\r\n";
  folder_.write("text.txt", text);
  const CommandResult packed = run({"data", "pack", "train.yaml"});
  EXPECT_EQ(packed.exit_code, 0) << packed.err;
  EXPECT_THAT(packed.err, HasSubstr("1 document has carriage returns"));
  EXPECT_THAT(run({"data", "pack", "train.yaml"}).err, Not(HasSubstr("carriage returns")));
  folder_.write("text.txt", "to be or not to be\nand so on, for as long as it takes to fill some sequences of eight tokens each\n");
  EXPECT_THAT(run({"data", "pack", "train.yaml"}).err, Not(HasSubstr("carriage returns")));
}

}  // namespace
}  // namespace tessera::cli
