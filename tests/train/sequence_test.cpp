// Plans that cut samples along the sequence train the model of one device.
#include <gtest/gtest.h>

#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

using model::Recompute;
using plan::Schedule;

constexpr std::int64_t kSteps = 5;

// What Mistral, Qwen and Llama 3.1 have beyond Llama, in one model.
const char* const kRelatives =
    ", head_dim: 24, qkv_bias: true, qk_norm: true, window: 9, "
    "rope_scaling: {rope_type: llama3, factor: 8, original_max_position_embeddings: 16}";

Degrees cut(Degrees degrees) {
  degrees.sequence_parallel = true;
  return degrees;
}

class SequenceCut : public testing::TestWithParam<Degrees> {};

TEST_P(SequenceCut, TrainsAndEvaluatesTheModelOfOneDevice) {
  for (const char* extra : {"", kRelatives}) {
    const auto job = tiny_job({}, extra);
    expect_same(train_and_evaluate(job, GetParam(), kSteps), train_and_evaluate(job, {}, kSteps), 1e-5, 1e-4);
  }
}

TEST_P(SequenceCut, StaysCloseInBf16) {
  const auto job = tiny_job("precision: bf16", kRelatives);
  expect_same(train_and_evaluate(job, GetParam(), kSteps), train_and_evaluate(job, {}, kSteps), 1e-2, 1e-1);
}

TEST_P(SequenceCut, TwiceIsBitwiseTheSameRun) {
  const auto job = tiny_job();
  const Evaluated first = train_and_evaluate(job, GetParam(), kSteps);
  const Evaluated second = train_and_evaluate(job, GetParam(), kSteps);
  EXPECT_EQ(first.curve.losses, second.curve.losses);
  EXPECT_EQ(first.curve.norms, second.curve.norms);
  EXPECT_EQ(first.after, second.after);
}

INSTANTIATE_TEST_SUITE_P(SequenceParallel, SequenceCut,
                         testing::Values(cut({1, 1, 2}), cut({1, 1, 4, 0, 2}), cut({2, 1, 2, 3, 2}), cut({1, 2, 2, 0, 4, Schedule::zb_h1}),
                                         cut({2, 1, 2, 1, 2, Schedule::one_f_one_b, Recompute::selective}),
                                         cut({1, 2, 2, 0, 4, Schedule::one_f_one_b, Recompute::full}),
                                         cut({1, 2, 2, 0, 4, Schedule::interleaved, Recompute::none, false, 2})),
                         [](const auto& info) {
                           std::string name = to_text(info.param);
                           std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
                           return name;
                         });

TEST(SequenceParallel, OfReplicasThatTakeUnequalPartsOfTheBatchTrainsTheSameModel) {
  const auto job = tiny_job();
  plan::Plan plan = plan_of(job, cut({2, 2, 2, 0, 2}));
  for (plan::Stage& stage : plan.stages) stage.shares = {{2, plan.samples() - 3}, {2, 3}};
  const Curve many = train_curve_of(job, plan, kSteps);
  const Curve one = train_curve(job, {}, kSteps);
  EXPECT_LT(worst_difference(many.losses, one.losses), 1e-5);
  EXPECT_LT(worst_difference(many.norms, one.norms), 1e-4);
}

}  // namespace
}  // namespace tessera::train
