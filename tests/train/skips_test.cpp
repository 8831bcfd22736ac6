// What one block makes and a much later one reads passes the stages between, under every plan.
#include <gtest/gtest.h>

#include "train/job_helper.hpp"
#include "train/skip_model_helper.hpp"

namespace tessera::train {
namespace {

constexpr std::int64_t kSteps = 5;

void expect_parity(const std::vector<Degrees>& plans) {
  const model::JobSpec job = skip_job();
  const Evaluated one = train_and_evaluate(job, {}, kSteps);
  EXPECT_LT(one.curve.losses.back(), one.curve.losses.front());
  for (const Degrees& degrees : plans) {
    SCOPED_TRACE(to_text(degrees));
    expect_same(train_and_evaluate(job, degrees, kSteps), one, 1e-5, 1e-4);
  }
}

TEST(Skips, PassStages) {
  expect_parity({{.pp = 2, .micro_batches = 4},
                 {.pp = 4, .micro_batches = 4},
                 {.dp = 2, .pp = 2, .micro_batches = 2, .recompute = model::Recompute::full}});
}

TEST(Skips, PassChunksAndSplitBackwardPasses) {
  expect_parity({{.pp = 2, .micro_batches = 4, .schedule = plan::Schedule::interleaved, .chunks = 2},
                 {.pp = 2, .micro_batches = 4, .schedule = plan::Schedule::zb_h1},
                 {.pp = 2, .micro_batches = 4, .schedule = plan::Schedule::zb_v, .chunks = 2}});
}

TEST(Skips, ShardedBlocks) {
  expect_parity({{.dp = 2, .zero = 3, .micro_batches = 2}, {.dp = 2, .pp = 2, .zero = 2, .micro_batches = 2}, {.dp = 3, .zero = 1}});
}

TEST(Skips, TheSamePlanTwiceIsTheSameRun) {
  const model::JobSpec job = skip_job();
  const Degrees degrees{.dp = 2, .pp = 2, .zero = 3, .micro_batches = 2};
  const Curve first = train_curve(job, degrees, kSteps);
  const Curve second = train_curve(job, degrees, kSteps);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.norms, second.norms);
}

}  // namespace
}  // namespace tessera::train
