// Plans that cut sequences among context-parallel ranks train the model of one device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <map>

#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

using model::ContextKind;
using model::Recompute;
using plan::Schedule;

constexpr std::int64_t kSteps = 4;

// What Mistral, Qwen and Llama 3.1 have beyond Llama, in one model.
const char* const kRelatives =
    ", head_dim: 24, qkv_bias: true, qk_norm: true, window: 9, "
    "rope_scaling: {rope_type: llama3, factor: 8, original_max_position_embeddings: 16}";

model::JobSpec moe_job(const std::string& extra = {}) {
  return model::read_job(ConfigNode::parse(
      text("name: moe\nmodel: {arch: qwen_moe, hidden: 64, layers: 4, heads: 4, kv_heads: 2, expert_ffn: 48, experts: 4, "
           "experts_per_token: 2, seq: 32, vocab: 256, balance_loss: 0.02, z_loss: 0.001, capacity: 1.0}\ndata: {source: synthetic}\n"
           "train: {global_batch: 16, optimizer: {kind: adamw, lr: 1.0e-3}",
           extra.empty() ? "" : ", ", extra, "}\n"),
      "moe.yaml"));
}

Degrees cut(int cp, ContextKind context, Degrees degrees) {
  degrees.cp = cp;
  degrees.context = context;
  return degrees;
}

Degrees with_sequence_parallel(Degrees degrees) {
  degrees.sequence_parallel = true;
  return degrees;
}

class ContextCut : public testing::TestWithParam<Degrees> {};

TEST_P(ContextCut, TrainsAndEvaluatesTheModelOfOneDevice) {
  for (const char* extra : {"", kRelatives}) {
    const auto job = tiny_job({}, extra);
    expect_same(train_and_evaluate(job, GetParam(), kSteps), train_and_evaluate(job, {}, kSteps), 1e-5, 1e-4);
  }
}

TEST_P(ContextCut, TrainsMixturesOfExperts) {
  const auto job = moe_job();
  const Evaluated one = train_and_evaluate(job, {}, kSteps);
  Degrees degrees = GetParam();
  expect_same(train_and_evaluate(job, degrees, kSteps), one, 1e-5, 1e-4);
  degrees.ep = 2;
  expect_same(train_and_evaluate(job, degrees, kSteps), one, 1e-5, 1e-4);
}

TEST_P(ContextCut, StaysCloseInBf16) {
  const auto job = tiny_job("precision: bf16", kRelatives);
  expect_same(train_and_evaluate(job, GetParam(), kSteps), train_and_evaluate(job, {}, kSteps), 1e-2, 1e-1);
}

TEST_P(ContextCut, TwiceIsBitwiseTheSameRun) {
  const auto job = tiny_job();
  const Evaluated first = train_and_evaluate(job, GetParam(), kSteps);
  const Evaluated second = train_and_evaluate(job, GetParam(), kSteps);
  EXPECT_EQ(first.curve.losses, second.curve.losses);
  EXPECT_EQ(first.curve.norms, second.curve.norms);
  EXPECT_EQ(first.after, second.after);
}

INSTANTIATE_TEST_SUITE_P(ContextParallel, ContextCut,
                         testing::Values(cut(2, ContextKind::ring, {}), cut(2, ContextKind::ulysses, {}), cut(4, ContextKind::ring, {}),
                                         cut(4, ContextKind::ulysses, {1, 1, 1, 3, 2}), cut(2, ContextKind::ring, {2, 1, 1, 2, 2}),
                                         cut(2, ContextKind::ring, {1, 1, 2, 1, 2}),
                                         cut(2, ContextKind::ulysses, with_sequence_parallel({1, 1, 2, 3, 2})),
                                         cut(2, ContextKind::ring, with_sequence_parallel({1, 2, 2, 0, 4, Schedule::zb_h1})),
                                         cut(2, ContextKind::ring, {1, 2, 1, 1, 4, Schedule::one_f_one_b, Recompute::full}),
                                         cut(2, ContextKind::ulysses, {2, 1, 1, 1, 2, Schedule::one_f_one_b, Recompute::selective}),
                                         cut(2, ContextKind::ulysses, {1, 2, 1, 0, 4, Schedule::interleaved, Recompute::none, false, 2})),
                         [](const auto& info) {
                           std::string name = to_text(info.param);
                           std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
                           return name;
                         });

RC_GTEST_PROP(ContextParallel, RandomPlansTrainTheSameModel, ()) {
  Degrees degrees;
  std::tie(degrees.dp, degrees.pp, degrees.cp, degrees.tp) =
      *rc::gen::element(std::tuple(1, 1, 2, 1), std::tuple(2, 1, 2, 1), std::tuple(1, 2, 2, 1), std::tuple(1, 1, 2, 2),
                        std::tuple(1, 1, 4, 1), std::tuple(2, 2, 2, 1), std::tuple(1, 2, 2, 2), std::tuple(1, 2, 4, 1));
  degrees.context = *rc::gen::element(ContextKind::ring, ContextKind::ulysses);
  degrees.schedule = *rc::gen::element(Schedule::gpipe, Schedule::one_f_one_b, Schedule::zb_h1, Schedule::interleaved, Schedule::zb_v);
  degrees.chunks = degrees.schedule == Schedule::interleaved || degrees.schedule == Schedule::zb_v ? 2 : 1;
  if (degrees.pp == 1) degrees.schedule = Schedule::one_f_one_b, degrees.chunks = 1;
  degrees.micro_batches = *rc::gen::element(2, 4);
  degrees.recompute = *rc::gen::element(Recompute::none, Recompute::selective, Recompute::full);
  degrees.zero = *rc::gen::inRange(0, 4);
  degrees.sequence_parallel = degrees.tp > 1 && *rc::gen::arbitrary<bool>();
  const bool experts = *rc::gen::arbitrary<bool>();
  if (experts) degrees.ep = *rc::gen::element(1, 2);
  RC_LOG() << to_text(degrees) << (experts ? ", experts" : "") << "\n";
  static std::map<bool, Curve> curves;
  const auto job = experts ? moe_job() : tiny_job({}, ", tied: true");
  const auto [one, fresh] = curves.try_emplace(experts);
  if (fresh) one->second = train_curve(job, {}, 2);
  const plan::Plan plan = plan_of(job, degrees);
  const Curve curve = train_curve_of(job, plan, 2);
  RC_ASSERT(worst_difference(curve.losses, one->second.losses) < 1e-5);
  RC_ASSERT(worst_difference(curve.norms, one->second.norms) < 1e-4);
}

// Several documents in each sample, whose attention stays within them, and losses over some of the tokens.
TEST(ContextParallel, KeepsDocumentsApartAsOneDeviceDoes) {
  const TemporaryFolder folder;
  Random random(3);
  std::string lines;
  for (int i = 0; i < 600; ++i) {
    const auto word = [&](std::uint64_t longest) {
      return std::string(1 + random.below(longest), static_cast<char>('a' + random.below(20)));
    };
    lines += "{\"p\": \"" + word(6) + "\", \"a\": \"" + word(14) + "\"}\n";
  }
  const auto job = model::read_job(ConfigNode::parse(
      text("name: documents\nmodel: {arch: llama, hidden: 64, layers: 4, heads: 4, kv_heads: 4, ffn: 96, seq: 32, vocab: 257}\n"
           "data: {source: ",
           folder.write("documents.jsonl", lines).string(),
           ", prompt: p, answer: a, tokenizer: {kind: bytes}}\n"
           "train: {global_batch: 16, optimizer: {kind: adamw, lr: 1.0e-3}}\n"),
      "documents.yaml"));
  const Curve one = train_curve(job, {}, kSteps);
  for (const Degrees& degrees : {cut(4, ContextKind::ring, {}), cut(2, ContextKind::ulysses, {1, 2, 1, 1, 2}),
                                 cut(2, ContextKind::ring, with_sequence_parallel({1, 1, 2, 0, 2}))}) {
    const Curve many = train_curve(job, degrees, kSteps);
    EXPECT_LT(worst_difference(many.losses, one.losses), 1e-5) << to_text(degrees);
    EXPECT_LT(worst_difference(many.norms, one.norms), 1e-4) << to_text(degrees);
  }
}

TEST(ContextParallel, OfReplicasThatTakeUnequalPartsOfTheBatchTrainsTheSameModel) {
  const auto job = tiny_job();
  plan::Plan plan = plan_of(job, cut(2, ContextKind::ring, {2, 2, 1, 0, 2}));
  for (plan::Stage& stage : plan.stages) stage.shares = {{2, plan.samples() - 3}, {2, 3}};
  const Curve many = train_curve_of(job, plan, kSteps);
  const Curve one = train_curve(job, {}, kSteps);
  EXPECT_LT(worst_difference(many.losses, one.losses), 1e-5);
  EXPECT_LT(worst_difference(many.norms, one.norms), 1e-4);
}

}  // namespace
}  // namespace tessera::train
