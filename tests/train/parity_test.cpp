// Every plan trains the same model: the most important tests in the house.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

constexpr std::int64_t kSteps = 6;

double worst_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return worst;
}

const Curve& one_device() {
  static const Curve curve = train_curve(tiny_job(), {}, kSteps);
  return curve;
}

class EveryPlan : public testing::TestWithParam<Degrees> {};

TEST_P(EveryPlan, TrainsTheSameModelAsOneDevice) {
  const Curve curve = train_curve(tiny_job(), GetParam(), kSteps);
  EXPECT_LT(worst_difference(curve.losses, one_device().losses), 1e-5);
  EXPECT_LT(worst_difference(curve.norms, one_device().norms), 1e-4);
}

using model::Recompute;
using plan::Schedule;
INSTANTIATE_TEST_SUITE_P(Trainer, EveryPlan,
                         testing::Values(Degrees{1, 1, 1, 0, 4}, Degrees{2, 1, 1}, Degrees{1, 2, 1, 0, 4}, Degrees{1, 1, 2},
                                         Degrees{2, 2, 1, 0, 2}, Degrees{1, 2, 2, 0, 4}, Degrees{2, 1, 1, 1, 2}, Degrees{4, 1, 1, 1},
                                         Degrees{1, 4, 1, 0, 8, Schedule::gpipe},
                                         Degrees{1, 1, 1, 0, 2, Schedule::one_f_one_b, Recompute::full},
                                         Degrees{1, 1, 1, 0, 2, Schedule::one_f_one_b, Recompute::selective},
                                         Degrees{2, 2, 1, 1, 4, Schedule::zb_h1, Recompute::selective},
                                         Degrees{2, 2, 2, 1, 4, Schedule::one_f_one_b, Recompute::full},
                                         Degrees{1, 2, 1, 0, 4, Schedule::zb_h1}, Degrees{1, 4, 1, 0, 8, Schedule::zb_h2},
                                         Degrees{2, 2, 1, 1, 4, Schedule::zb_h1, Recompute::full},
                                         Degrees{1, 2, 1, 0, 4, Schedule::interleaved, Recompute::none, false, 3},
                                         Degrees{2, 2, 1, 1, 4, Schedule::interleaved, Recompute::full, false, 2},
                                         Degrees{1, 1, 2, 0, 2, Schedule::interleaved, Recompute::none, false, 2},
                                         Degrees{1, 2, 1, 0, 4, Schedule::zb_v, Recompute::none, false, 2},
                                         Degrees{1, 3, 1, 0, 8, Schedule::zb_v, Recompute::full, false, 2},
                                         Degrees{2, 2, 1, 1, 4, Schedule::zb_v, Recompute::none, false, 2},
                                         Degrees{1, 2, 2, 0, 4, Schedule::dualpipe_v, Recompute::none, false, 2},
                                         Degrees{1, 3, 1, 0, 8, Schedule::dualpipe_v, Recompute::full, false, 2}),
                         [](const auto& info) {
                           std::string name = to_text(info.param);
                           std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
                           return name;
                         });

INSTANTIATE_TEST_SUITE_P(Sharded, EveryPlan,
                         testing::Values(Degrees{4, 1, 1, 1, 2, Schedule::one_f_one_b, Recompute::none, false, 1, 2},
                                         Degrees{2, 1, 1, 2, 2}, Degrees{2, 1, 1, 3, 2}, Degrees{2, 1, 1, 3, 4, Schedule::gpipe},
                                         Degrees{2, 2, 1, 3, 4, Schedule::one_f_one_b, Recompute::full},
                                         Degrees{2, 2, 1, 2, 4, Schedule::zb_h1}, Degrees{2, 1, 2, 3, 2},
                                         Degrees{4, 1, 1, 2, 2, Schedule::one_f_one_b, Recompute::none, false, 1, 2},
                                         Degrees{4, 1, 1, 3, 2, Schedule::one_f_one_b, Recompute::full, false, 1, 2},
                                         Degrees{2, 2, 1, 3, 4, Schedule::interleaved, Recompute::none, false, 2},
                                         Degrees{2, 2, 1, 3, 4, Schedule::zb_v, Recompute::full, false, 2}),
                         [](const auto& info) {
                           std::string name = to_text(info.param);
                           std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
                           return name;
                         });

// One stage after the other is cut into runs of blocks, each sharded and computed again in its own way.
RC_GTEST_PROP(Trainer, PlansWithAStrategyForEachBlockTrainTheSameModel, ()) {
  Degrees degrees;
  degrees.dp = *rc::gen::element(2, 4);
  degrees.pp = degrees.dp == 4 ? 1 : *rc::gen::element(1, 2);
  degrees.tp = 4 / (degrees.dp * degrees.pp);
  degrees.micro_batches = *rc::gen::element(1, 2, 4);
  degrees.schedule =
      degrees.pp == 1 ? Schedule::one_f_one_b
                      : *rc::gen::element(Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved, Schedule::zb_h1, Schedule::zb_v);
  degrees.chunks = degrees.schedule == Schedule::interleaved || degrees.schedule == Schedule::zb_v ? 2 : 1;
  if (degrees.schedule == Schedule::interleaved) degrees.micro_batches = std::max<std::int64_t>(2, degrees.micro_batches);
  degrees.sequence_parallel = degrees.tp > 1 && *rc::gen::arbitrary<bool>();
  degrees.delayed_exchange = *rc::gen::arbitrary<bool>();
  const bool tied = *rc::gen::arbitrary<bool>();
  auto job = tiny_job({}, tied ? ", tied: true" : "");
  job.train.optimizer.clip = 0;
  plan::Plan plan = plan_of(job, degrees);
  for (plan::Stage& stage : plan.stages) {
    std::vector<plan::StrategyRun> runs;
    for (int block = stage.first_block(); block < stage.last_block(); ++block) {
      plan::Strategy strategy = stage.runs.front().strategy;
      strategy.zero = *rc::gen::inRange(0, 4);
      strategy.recompute = *rc::gen::element(Recompute::none, Recompute::selective, Recompute::full);
      if (degrees.dp == 4 && strategy.zero > 0) strategy.shards = *rc::gen::element(0, 2);
      strategy.offload_optimizer = *rc::gen::arbitrary<bool>();
      runs.push_back({block, block + 1, strategy});
    }
    stage.runs = std::move(runs);
  }
  RC_LOG() << plan::to_json(plan) << "\n";
  constexpr std::int64_t kFew = 3;
  static std::map<bool, Curve> curves;
  const auto [one, fresh] = curves.try_emplace(tied);
  if (fresh) one->second = train_curve(job, {}, kFew);
  const Curve many = train_curve_of(job, plan, kFew);
  RC_ASSERT(worst_difference(many.losses, one->second.losses) < 1e-5);
  // Those of late exchanges are known a step later.
  if (!degrees.delayed_exchange) RC_ASSERT(worst_difference(many.norms, one->second.norms) < 1e-4);
}

TEST(Trainer, ReplicasThatTakeUnequalPartsOfTheBatchTrainTheSameModel) {
  const auto job = tiny_job();
  for (const Degrees& degrees : {Degrees{2, 1, 1}, Degrees{2, 1, 1, 1, 2}, Degrees{2, 2, 1, 0, 2}, Degrees{2, 1, 2, 0, 2}}) {
    plan::Plan plan = plan_of(job, degrees);
    for (plan::Stage& stage : plan.stages) stage.shares = {{degrees.tp, plan.samples() - 3}, {degrees.tp, 3}};
    const Curve curve = train_curve_of(job, plan, kSteps);
    EXPECT_LT(worst_difference(curve.losses, one_device().losses), 1e-5) << to_text(degrees);
    EXPECT_LT(worst_difference(curve.norms, one_device().norms), 1e-4) << to_text(degrees);
  }
}

// Exchanged late, but never used late.
class DelayedExchange : public testing::TestWithParam<Degrees> {};

TEST_P(DelayedExchange, TrainsBitForBitAsWithout) {
  for (const char* model_extra : {"", ", tied: true"}) {
    auto job = tiny_job({}, model_extra);
    job.train.optimizer.clip = 0;
    Degrees degrees = GetParam();
    const Curve at_once = train_curve(job, degrees, kSteps);
    degrees.delayed_exchange = true;
    const Curve late = train_curve(job, degrees, kSteps);
    EXPECT_EQ(late.losses, at_once.losses);
    // Norms are known a step later, summed in another order.
    EXPECT_TRUE(std::isnan(late.norms.front()));
    for (std::int64_t i = 1; i < kSteps; ++i) EXPECT_NEAR(late.norms[i], at_once.norms[i - 1], 1e-9 * at_once.norms[i - 1]);
  }
}

INSTANTIATE_TEST_SUITE_P(Trainer, DelayedExchange,
                         testing::Values(Degrees{2, 1, 1}, Degrees{2, 1, 1, 1, 2}, Degrees{1, 2, 1, 0, 4}, Degrees{2, 2, 1, 0, 2},
                                         Degrees{2, 2, 1, 1, 4, Schedule::gpipe}, Degrees{2, 1, 2, 1, 2},
                                         Degrees{2, 2, 1, 0, 4, Schedule::one_f_one_b, Recompute::full},
                                         Degrees{2, 2, 1, 1, 4, Schedule::interleaved, Recompute::none, false, 2},
                                         Degrees{2, 2, 1, 0, 4, Schedule::zb_v, Recompute::none, false, 2}, Degrees{2, 1, 1, 2, 2},
                                         Degrees{2, 1, 1, 3, 2}, Degrees{2, 2, 1, 3, 4, Schedule::zb_h1, Recompute::full},
                                         Degrees{4, 1, 1, 3, 2, Schedule::gpipe, Recompute::none, false, 1, 2},
                                         Degrees{4, 1, 1, 2, 2, Schedule::one_f_one_b, Recompute::none, false, 1, 2},
                                         Degrees{2, 2, 1, 3, 4, Schedule::zb_v, Recompute::none, false, 2}),
                         [](const auto& info) {
                           std::string name = to_text(info.param);
                           std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
                           return name;
                         });

// That they are the right ones is held against PyTorch (tests/python/test_parity.py).
TEST(Trainer, GradientsThatAreUsedAStepLateAreTheSameUnderEveryPlan) {
  for (const char* model_extra : {"", ", tied: true"}) {
    auto job = tiny_job({}, model_extra);
    job.train.optimizer.clip = 0;
    const Curve exact = train_curve(job, {}, kSteps);
    const Curve one = train_curve(job, {.delayed_exchange = true, .staleness = 1}, kSteps);
    EXPECT_EQ(one.losses[0], exact.losses[0]);
    EXPECT_GT(worst_difference(one.losses, exact.losses), 1e-4);
    for (const Degrees& degrees :
         std::vector<Degrees>{{.dp = 2},
                              {.dp = 2, .zero = 1, .micro_batches = 2},
                              {.dp = 4, .zero = 1, .shards = 2},
                              {.dp = 2, .pp = 2, .tp = 1, .zero = 1, .micro_batches = 4, .schedule = Schedule::zb_h1},
                              {.pp = 2, .tp = 2, .micro_batches = 2},
                              {.pp = 2, .micro_batches = 4, .schedule = Schedule::zb_v, .chunks = 2},
                              {.tp = 2, .cp = 2, .context = model::ContextKind::ring}}) {
      Degrees late = degrees;
      late.delayed_exchange = true;
      late.staleness = 1;
      const Curve curve = train_curve(job, late, kSteps);
      EXPECT_LT(worst_difference(curve.losses, one.losses), 1e-5) << to_text(late);
    }
  }
}

// Memory of CPU workers is the host's.
TEST(Trainer, AnOptimizerOnTheHostStepsBitForBitAsOneOnTheDevice) {
  const auto job = tiny_job();
  plan::Plan plan = plan_of(job, {2, 2, 1, 1, 2});
  const Curve on_device = train_curve_of(job, plan, kSteps);
  plan.stages.front().runs.front().strategy.offload_optimizer = true;
  const Curve on_host = train_curve_of(job, plan, kSteps);
  EXPECT_EQ(on_host.losses, on_device.losses);
  EXPECT_EQ(on_host.norms, on_device.norms);
}

TEST(Trainer, AStepThatAnEvaluationHasFinishedIsReportedAndTracedWhole) {
  auto job = tiny_job();
  job.train.optimizer.clip = 0;
  plan::Plan plan = plan_of(job, {2, 1, 1});
  const Curve at_once = train_curve_of(job, plan, 2);
  plan.delayed_exchange = true;
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm);
    trainer.initialize();
    trainer.step();
    trainer.finish();
    EXPECT_NEAR(trainer.step().grad_norm, at_once.norms[0], 1e-9 * at_once.norms[0]);
    trainer.finish();
    std::set<std::string> names;
    const std::string text = trainer.chrome_trace();
    if (comm.rank() != 0) return;
    const auto trace = nlohmann::json::parse(text);
    for (const auto& event : trace.at("traceEvents")) names.insert(event.at("name"));
    EXPECT_TRUE(names.contains("forward m0"));
    EXPECT_TRUE(names.contains("reduce_gradients bucket 0"));
  });
}

TEST(Trainer, AnInfiniteGradientThatWasSteppedWithIsAnError) {
  auto job = tiny_job("schedule: {kind: constant}");
  job.train.optimizer.clip = 0;
  job.train.optimizer.lr = 1e30;
  plan::Plan plan = plan_of(job, {2, 1, 1});
  plan.delayed_exchange = true;
  EXPECT_THROW(train_curve_of(job, plan, kSteps), Error);
}

TEST(Trainer, TiedEmbeddingsAgreeAcrossStages) {
  const auto job = tiny_job({}, ", tied: true");
  const Curve one = train_curve(job, {}, kSteps);
  for (const Degrees& degrees : {Degrees{1, 2, 1, 0, 2}, Degrees{2, 2, 1, 1, 2}, Degrees{1, 2, 2, 0, 2},
                                 Degrees{2, 2, 1, 1, 4, Schedule::zb_v, Recompute::none, false, 2},
                                 Degrees{1, 2, 1, 0, 4, Schedule::interleaved, Recompute::none, false, 3}, Degrees{2, 1, 1, 3, 2},
                                 Degrees{2, 1, 1, 2, 4, Schedule::gpipe}, Degrees{2, 2, 1, 3, 4},
                                 Degrees{2, 2, 1, 3, 4, Schedule::zb_v, Recompute::none, false, 2}}) {
    const Curve curve = train_curve(job, degrees, kSteps);
    EXPECT_LT(worst_difference(curve.losses, one.losses), 1e-5) << to_text(degrees);
    EXPECT_LT(worst_difference(curve.norms, one.norms), 1e-4) << to_text(degrees);
  }
}

// What Mistral, Qwen and Llama 3.1 have beyond Llama, in one model.
const char* const kRelatives =
    ", head_dim: 24, qkv_bias: true, qk_norm: true, window: 9, "
    "rope_scaling: {rope_type: llama3, factor: 8, original_max_position_embeddings: 16}";

TEST(Trainer, LlamasRelativesTrainTheSameModelUnderEveryPlan) {
  const auto job = tiny_job({}, kRelatives);
  const Curve one = train_curve(job, {}, kSteps);
  EXPECT_GT(worst_difference(one.losses, one_device().losses), 1e-4);
  for (const Degrees& degrees :
       {Degrees{1, 1, 2}, Degrees{1, 1, 4}, Degrees{1, 2, 2, 0, 4}, Degrees{2, 1, 2, 1, 2}, Degrees{1, 2, 1, 0, 4, Schedule::zb_h1},
        Degrees{2, 2, 1, 1, 4, Schedule::zb_h1, Recompute::full}, Degrees{1, 1, 2, 0, 2, Schedule::one_f_one_b, Recompute::full}}) {
    const Curve curve = train_curve(job, degrees, kSteps);
    EXPECT_LT(worst_difference(curve.losses, one.losses), 1e-5) << to_text(degrees);
    EXPECT_LT(worst_difference(curve.norms, one.norms), 1e-4) << to_text(degrees);
  }
  const auto half = tiny_job("precision: bf16", kRelatives);
  for (const Degrees& degrees : {Degrees{}, Degrees{1, 2, 2, 0, 4}})
    EXPECT_LT(worst_difference(train_curve(half, degrees, kSteps).losses, one.losses), 1e-2) << to_text(degrees);
}

TEST(Trainer, TheSamePlanTwiceIsBitwiseTheSameRun) {
  for (const char* model_extra : {"", kRelatives})
    for (const Degrees& degrees : {Degrees{}, Degrees{2, 2, 1, 1, 2}, Degrees{2, 1, 2, 0, 2}}) {
      const Curve first = train_curve(tiny_job({}, model_extra), degrees, kSteps);
      const Curve second = train_curve(tiny_job({}, model_extra), degrees, kSteps);
      EXPECT_EQ(first.losses, second.losses) << to_text(degrees);
      EXPECT_EQ(first.norms, second.norms) << to_text(degrees);
    }
}

TEST(Trainer, GradientsAreReducedBesideTheBackwardPass) {
  const auto job = tiny_job();
  plan::Plan plan = plan_of(job, {2, 1, 1});
  plan.bucket_size = Bytes(64 << 10);
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm);
    trainer.initialize();
    trainer.step();
    double reduced = 0;
    double computed = 0;
    const std::string text = trainer.chrome_trace();
    if (comm.rank() != 0) return;
    const auto trace = nlohmann::json::parse(text);
    for (const auto& event : trace.at("traceEvents")) {
      if (event.at("pid") != 0) continue;
      const std::string name = event.at("name");
      if (name == "reduce_gradients bucket 0") reduced = event.at("ts");
      if (name.starts_with("backward")) computed = std::max(computed, event.at("ts").get<double>());
    }
    EXPECT_GT(reduced, 0);
    EXPECT_LT(reduced, computed);
  });
}

TEST(Trainer, LossFallsOnRandomTokensItSeesAgain) {
  const TemporaryFolder folder;
  constexpr int kLetters = 26, kSequences = 16, kLength = 32;
  std::string letters(kSequences * kLength + 1, ' ');
  Random random(5);
  for (char& letter : letters) letter = static_cast<char>('a' + random.below(kLetters));
  // Every step sees all of them: what is learnt beyond the letters' frequency is known by heart.
  const auto job =
      model::read_job(ConfigNode::parse(text("name: tiny\nmodel: {arch: llama, hidden: 64, layers: 2, heads: 4, ffn: 96, seq: ", kLength,
                                             ", vocab: 257}\ndata: {source: ", folder.write("letters.txt", letters).string(),
                                             ", tokenizer: {kind: bytes}, split: {train: 1.0}}\ntrain: {global_batch: ", kSequences,
                                             ", optimizer: {kind: adamw, lr: 1.0e-2}, schedule: {kind: constant}}\n"),
                                        "letters.yaml"));
  const auto dataset = data::TextDataset::open(job.data, kLength, 257, job.train.seed, folder / "cache");
  std::vector<double> losses;
  on_ranks(1, [&](comm::Communicator& comm) {
    Trainer trainer(job, plan_of(job, {}), *dataset, comm);
    trainer.initialize();
    for (int step = 0; step < 60; ++step) losses.push_back(trainer.step().loss);
  });
  EXPECT_NEAR(losses.front(), std::log(257.0), 0.2);
  EXPECT_LT(losses.back(), std::log(static_cast<double>(kLetters)) - 0.5);
}

TEST(Trainer, SgdWithMomentumAgreesToo) {
  const auto job = model::read_job(ConfigNode::parse(
      "name: tiny\nmodel: {arch: llama, hidden: 64, layers: 4, heads: 4, ffn: 96, seq: 32, vocab: 256}\ndata: {source: synthetic}\n"
      "train: {global_batch: 16, optimizer: {kind: sgd, lr: 0.1, momentum: 0.9}}\n",
      "sgd.yaml"));
  EXPECT_LT(worst_difference(train_curve(job, {2, 2, 1, 1, 2}, kSteps).losses, train_curve(job, {}, kSteps).losses), 1e-5);
}

TEST(Trainer, Bf16PlansStayCloseToOneDevice) {
  const auto job = tiny_job("precision: bf16");
  const Curve one = train_curve(job, {}, kSteps);
  EXPECT_LT(worst_difference(one.losses, one_device().losses), 1e-2);
  for (const Degrees& degrees : {Degrees{2, 1, 1, 1, 2}, Degrees{1, 2, 2, 0, 4}})
    EXPECT_LT(worst_difference(train_curve(job, degrees, kSteps).losses, one.losses), 1e-2) << to_text(degrees);
}

}  // namespace
}  // namespace tessera::train
