// Losses over answers alone: what counts is spread unevenly over micro-batches and replicas, and the mean is that of one device.
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

constexpr std::int64_t kSteps = 5;

// Sequences of 32 with one to 29 answer tokens.
model::JobSpec job_of(const TemporaryFolder& folder) {
  Random random(3);
  std::string lines;
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t answer = 1 + random.below(28);
    std::string prompt(28 - answer + random.below(3), 'p');
    for (char& letter : prompt) letter = static_cast<char>('a' + random.below(20));
    lines += "{\"p\": \"" + prompt + "\", \"a\": \"" + std::string(answer, static_cast<char>('a' + random.below(20))) + "\"}\n";
  }
  return model::read_job(ConfigNode::parse(
      text("name: answers\nmodel: {arch: llama, hidden: 64, layers: 4, heads: 4, kv_heads: 4, ffn: 96, seq: 32, vocab: 257}\n"
           "data: {source: ",
           folder.write("answers.jsonl", lines).string(),
           ", prompt: p, answer: a, tokenizer: {kind: bytes}}\n"
           "train: {global_batch: 16, optimizer: {kind: adamw, lr: 1.0e-3}}\n"),
      "answers.yaml"));
}

void expect_same(const Curve& curve, const Curve& one, const std::string& what) {
  ASSERT_EQ(curve.losses.size(), one.losses.size()) << what;
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(curve.losses[i], one.losses[i], 1e-5 * one.losses[i]) << what << " step " << i;
    EXPECT_NEAR(curve.norms[i], one.norms[i], 1e-4 * one.norms[i]) << what << " step " << i;
  }
}

TEST(Answers, TrainTheSameModelUnderEveryPlan) {
  const TemporaryFolder folder;
  const model::JobSpec job = job_of(folder);
  const Curve one = train_curve(job, {}, kSteps);
  using model::Recompute;
  using plan::Schedule;
  for (const Degrees& degrees :
       {Degrees{1, 1, 1, 0, 4}, Degrees{4, 1, 1, 1}, Degrees{1, 2, 2, 0, 4}, Degrees{2, 2, 1, 1, 4, Schedule::zb_h1, Recompute::full}})
    expect_same(train_curve(job, degrees, kSteps), one, to_text(degrees));
  plan::Plan unequal = plan_of(job, {2, 1, 1, 0, 2});
  for (plan::Stage& stage : unequal.stages) stage.shares = {{1, unequal.samples() - 3}, {1, 3}};
  expect_same(train_curve_of(job, unequal, kSteps), one, "unequal shares");
}

}  // namespace
}  // namespace tessera::train
