// Mixtures of experts: whoever holds the experts, the model is trained as on one device.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "checkpoint/checkpoint.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

using model::Recompute;
using plan::Schedule;

constexpr std::int64_t kSteps = 5;
const char* const kLosses = ", balance_loss: 0.05, z_loss: 0.01, capacity: 1.0";

const Curve& one_device() {
  static const Curve curve = train_curve(tiny_experts_job(kLosses), {}, kSteps);
  return curve;
}

void expect_the_same(const Curve& curve, const plan::Plan& plan) {
  EXPECT_LT(worst_difference(curve.losses, one_device().losses), 1e-5) << plan::to_json(plan);
  EXPECT_LT(worst_difference(curve.norms, one_device().norms), 1e-4) << plan::to_json(plan);
}

TEST(Experts, TheLossesOfTheRouterAreTrainedOn) {
  const Curve plain = train_curve(tiny_experts_job(", capacity: 1.0"), {}, kSteps);
  EXPECT_NEAR(plain.losses.front(), one_device().losses.front(), 1e-9) << "what is reported is the loss of tokens";
  EXPECT_GT(worst_difference(plain.norms, one_device().norms), 1e-4);
}

TEST(Experts, EveryPlanTrainsTheSameModel) {
  const auto job = tiny_experts_job(kLosses);
  for (const Degrees& degrees : {
           Degrees{.dp = 2},
           Degrees{.tp = 2},
           Degrees{.dp = 2, .ep = 2},
           Degrees{.dp = 4, .ep = 4},
           Degrees{.dp = 4, .zero = 1, .ep = 2},
           Degrees{.dp = 4, .zero = 2, .micro_batches = 2, .ep = 2},
           Degrees{.dp = 4, .zero = 3, .recompute = Recompute::full, .ep = 2},
           Degrees{.dp = 4, .zero = 3, .shards = 2, .ep = 2},
           Degrees{.dp = 2, .tp = 2, .zero = 1, .ep = 2},
           Degrees{.dp = 2, .tp = 2, .recompute = Recompute::selective, .sequence_parallel = true, .ep = 2},
           Degrees{.dp = 2, .pp = 2, .micro_batches = 4, .schedule = Schedule::zb_h1, .ep = 2},
           Degrees{.tp = 2, .whole_experts = true},
           Degrees{.dp = 2, .tp = 2, .sequence_parallel = true, .ep = 4, .whole_experts = true},
           Degrees{.dp = 2, .tp = 2, .zero = 3, .recompute = Recompute::full, .ep = 2, .whole_experts = true},
           Degrees{.pp = 2, .tp = 2, .zero = 1, .micro_batches = 2, .schedule = Schedule::zb_h1, .cp = 2, .ep = 2, .whole_experts = true},
           Degrees{.dp = 2, .pp = 2, .zero = 3, .micro_batches = 2, .schedule = Schedule::interleaved, .chunks = 2, .ep = 2},
       }) {
    const plan::Plan plan = plan_of(job, degrees);
    expect_the_same(train_curve_of(job, plan, kSteps), plan);
  }
}

TEST(Experts, TheSamePlanTwiceGivesTheSameBits) {
  const auto job = tiny_experts_job(kLosses);
  const Degrees degrees{.dp = 4, .zero = 1, .ep = 2};
  const Curve first = train_curve(job, degrees, kSteps);
  const Curve second = train_curve(job, degrees, kSteps);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.norms, second.norms);
}

TEST(Experts, TakeTokensOfUnequalShares) {
  const auto job = tiny_experts_job(kLosses);
  plan::Plan plan = plan_of(job, {.dp = 4, .ep = 2});
  plan.stages.front().shares = {{2, 12}, {2, 4}};
  expect_the_same(train_curve_of(job, plan, kSteps), plan);
}

TEST(Experts, BlocksOfOneStageSpreadThemDifferently) {
  const auto job = tiny_experts_job(kLosses);
  plan::Plan plan = plan_of(job, {.dp = 4, .zero = 1, .ep = 2});
  plan::StrategyRun upper = plan.stages.front().runs.front();
  plan.stages.front().runs.front().last = upper.first = 2;
  upper.strategy.ep = 4;
  upper.strategy.zero = 3;
  plan.stages.front().runs.push_back(upper);
  expect_the_same(train_curve_of(job, plan, kSteps), plan);
  // Cut by tensor parallelism below, and whole above.
  plan.stages.front().runs.front().strategy = {.dp = 2, .tp = 2, .zero = 1, .ep = 2};
  plan.stages.front().runs.back().strategy = {.dp = 2, .tp = 2, .zero = 1, .ep = 2, .whole_experts = true};
  expect_the_same(train_curve_of(job, plan, kSteps), plan);
}

RC_GTEST_PROP(Experts, RandomPlansTrainTheSameModel, ()) {
  Degrees degrees;
  std::tie(degrees.dp, degrees.tp, degrees.pp) = *rc::gen::element(std::tuple(4, 1, 1), std::tuple(2, 2, 1), std::tuple(2, 1, 2));
  degrees.ep = degrees.dp == 4 ? *rc::gen::element(1, 2, 4) : *rc::gen::element(1, 2);
  degrees.zero = *rc::gen::inRange(0, 4);
  degrees.micro_batches = *rc::gen::element(2, 4);
  degrees.recompute = *rc::gen::element(Recompute::none, Recompute::selective, Recompute::full);
  degrees.sequence_parallel = degrees.tp > 1 && *rc::gen::arbitrary<bool>();
  degrees.whole_experts = degrees.tp > 1 && *rc::gen::arbitrary<bool>();
  if (degrees.pp > 1) degrees.schedule = *rc::gen::element(Schedule::gpipe, Schedule::one_f_one_b, Schedule::zb_h1);
  const auto job = tiny_experts_job(kLosses);
  const Curve curve = train_curve(job, degrees, kSteps);
  RC_LOG() << to_text(degrees);
  RC_ASSERT(worst_difference(curve.losses, one_device().losses) < 1e-5);
  RC_ASSERT(worst_difference(curve.norms, one_device().norms) < 1e-4);
}

// A checkpoint does not know who held the experts.
TEST(Experts, ACheckpointOfAnyPlanIsLoadedUnderAnyOther) {
  const auto job = tiny_experts_job(kLosses);
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const TemporaryFolder folder;
  const std::vector<Degrees> plans = {{.dp = 1},
                                      {.dp = 4, .zero = 1, .ep = 2},
                                      {.dp = 2, .tp = 2, .ep = 2},
                                      {.dp = 4, .zero = 3, .ep = 4},
                                      {.dp = 2, .tp = 2, .zero = 1, .ep = 2, .whole_experts = true}};
  const auto run = [&](const Degrees& degrees, const std::function<void(Trainer&)>& work) {
    const plan::Plan plan = plan_of(job, degrees);
    on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
      Trainer trainer(job, plan, *dataset, comm);
      work(trainer);
    });
  };
  for (std::size_t from = 0; from < plans.size(); ++from) {
    const auto path = folder.path() / text(from);
    run(plans[from], [&](Trainer& trainer) {
      trainer.initialize();
      trainer.step();
      trainer.save(real_file_system(), path, 3);
    });
    const checkpoint::Reader saved(checkpoint::find(path));
    for (const Degrees& to : plans) {
      const auto again = folder.path() / text(from, "-under-", &to - plans.data());
      run(to, [&](Trainer& trainer) {
        trainer.load(checkpoint::find(path));
        trainer.save(real_file_system(), again, 3);
      });
      const checkpoint::Reader copy(checkpoint::find(again));
      for (const checkpoint::TensorInfo& tensor : saved.tensors())
        EXPECT_TRUE(at::equal(saved.read(tensor.name), copy.read(tensor.name))) << tensor.name << " from " << from << " to " << to_text(to);
    }
  }
}

}  // namespace
}  // namespace tessera::train
