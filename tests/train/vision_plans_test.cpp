// Vision models train the same under every plan, as far as their norms let them: batch norm takes its statistics from one micro-batch of
// one rank, or where it is synchronized of all replicas.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "train/vision_helper.hpp"

namespace tessera::train {
namespace {

using model::Recompute;
using plan::Schedule;

constexpr std::int64_t kSteps = 5;
constexpr std::int64_t kBatch = 8;

struct Images {
  at::Tensor images;
  at::Tensor labels;
};

Images random_images(const model::ModelSpec& model) {
  at::manual_seed(11);
  const std::int64_t side = model.dim("image");
  return {at::randn({kSteps * kBatch, model.dim("channels"), side, side}), at::randint(model.dim("classes"), {kSteps * kBatch}, at::kLong)};
}

void expect_same(const Trained& many, const Trained& one, const NamedTensors& initial) {
  EXPECT_LT(worst_difference(many.losses, one.losses), 1e-4);
  ASSERT_EQ(many.tensors.size(), one.tensors.size());
  for (const auto& [name, value] : one.tensors) {
    const double moved = (value - initial.at(name)).norm().item<double>();
    EXPECT_LT((many.tensors.at(name) - value).norm().item<double>(), 1e-3 * moved + 1e-6) << name;
  }
}

// The same micro-batches of the same samples, whoever computes them.
TEST(VisionPlans, WithBatchNormTrainAsOneDeviceDoesOnTheSameMicroBatches) {
  model::JobSpec job = vision_job("{arch: resnet18, image: 64, classes: 10}", kBatch, 0.01);
  job.model = narrowed(job.model);
  const auto [images, labels] = random_images(job.model);
  const NamedTensors initial = train_on_images(job, plan_of(job, {}), images.narrow(0, 0, 0), labels.narrow(0, 0, 0)).tensors;
  const Trained one = train_on_images(job, plan_of(job, {.micro_batches = 4}), images, labels);
  for (const Degrees& degrees : {Degrees{.dp = 4, .zero = 3, .recompute = Recompute::full},
                                 Degrees{.dp = 2, .pp = 2, .zero = 2, .micro_batches = 2, .schedule = Schedule::zb_h1},
                                 Degrees{.pp = 4, .micro_batches = 4, .recompute = Recompute::full}}) {
    SCOPED_TRACE(to_text(degrees));
    expect_same(train_on_images(job, plan_of(job, degrees), images, labels), one, initial);
  }
  // Statistics of other samples are others.
  EXPECT_GT(worst_difference(train_on_images(job, plan_of(job, {}), images, labels).losses, one.losses), 1e-4);
}

// A residual block in two parts computes what it does whole, also with a stage's end between them, which its input then passes. Each plan
// is held against itself: norms over so few values of ResNet-50 make of 1e-7, by another order of sums, 1e-2 within three steps.
TEST(VisionPlans, SplitResidualBlocksTrainAsWholeOnes) {
  for (const char* arch : {"resnet18", "resnet50"}) {
    model::JobSpec job = vision_job(text("{arch: ", arch, ", image: 64, classes: 10}"), kBatch, 0.01);
    model::JobSpec split = vision_job(text("{arch: ", arch, ", image: 64, classes: 10, split_layers: true}"), kBatch, 0.01);
    job.model = narrowed(job.model), split.model = narrowed(split.model);
    const auto [images, labels] = random_images(job.model);
    const NamedTensors initial = train_on_images(job, plan_of(job, {}), images.narrow(0, 0, 0), labels.narrow(0, 0, 0)).tensors;
    for (const Degrees& degrees : {Degrees{.micro_batches = 4}, Degrees{.dp = 4, .zero = 3, .recompute = Recompute::full},
                                   Degrees{.pp = 4, .micro_batches = 4, .schedule = Schedule::zb_h1},
                                   Degrees{.pp = 3, .micro_batches = 4, .recompute = Recompute::full}}) {
      SCOPED_TRACE(text(arch, " ", to_text(degrees)));
      const Trained whole = train_on_images(job, plan_of(job, degrees), images, labels);
      const Trained parts = train_on_images(split, plan_of(split, degrees), images, labels);
      expect_same(parts, whole, initial);
      if (degrees.dp * degrees.pp == 1) {
        EXPECT_EQ(parts.losses, whole.losses);
      }
    }
  }
}

class SynchronizedBatchNorm : public testing::Test {
 protected:
  SynchronizedBatchNorm() {
    job_.model = narrowed(job_.model);
    images_ = random_images(job_.model);
    initial_ = train(plan_of(job_, {}), 0).tensors;
  }
  Trained train(const plan::Plan& plan, std::int64_t steps = kSteps) const {
    return train_on_images(job_, plan, images_.images.narrow(0, 0, steps * kBatch), images_.labels.narrow(0, 0, steps * kBatch));
  }

  model::JobSpec job_ = vision_job("{arch: resnet18, image: 64, classes: 10, batch_norm: synchronized}", kBatch, 0.002);
  Images images_;
  NamedTensors initial_;
};

TEST_F(SynchronizedBatchNorm, TrainsTheModelOfOneDevice) {
  const Trained whole = train(plan_of(job_, {}));
  const Trained halves = train(plan_of(job_, {.micro_batches = 2}));
  EXPECT_GT(worst_difference(whole.losses, halves.losses), 1e-4);
  for (const Degrees& degrees :
       {Degrees{.dp = 2}, Degrees{.dp = 4, .zero = 1}, Degrees{.dp = 2, .zero = 3, .recompute = Recompute::full},
        Degrees{.dp = 2, .pp = 2, .zero = 1, .micro_batches = 2},
        Degrees{.dp = 2, .pp = 2, .micro_batches = 2, .schedule = Schedule::zb_h1, .recompute = Recompute::full}}) {
    SCOPED_TRACE(to_text(degrees));
    expect_same(train(plan_of(job_, degrees)), degrees.micro_batches == 1 ? whole : halves, initial_);
  }
}

TEST_F(SynchronizedBatchNorm, WeighsReplicasByTheirSamples) {
  const Trained whole = train(plan_of(job_, {}));
  plan::Plan two = plan_of(job_, {.dp = 2});
  two.stages[0].shares = {{1, 6}, {1, 2}};
  expect_same(train(two), whole, initial_);
  // Two replicas share what the first part takes.
  plan::Plan three = plan_of(job_, {.dp = 3, .zero = 3, .recompute = Recompute::full});
  three.stages[0].shares = {{2, 2}, {1, 6}};
  expect_same(train(three), whole, initial_);
}

TEST(VisionPlans, CutAClassifierBesideReplicasOfTheConvolutions) {
  model::JobSpec job = vision_job("{arch: vgg11, image: 32, classes: 10}", kBatch, 0.05);
  job.model = narrowed(job.model);
  const auto [images, labels] = random_images(job.model);
  const NamedTensors initial = train_on_images(job, plan_of(job, {}), images.narrow(0, 0, 0), labels.narrow(0, 0, 0)).tensors;
  const Trained one = train_on_images(job, plan_of(job, {}), images, labels);
  const int last = job.model.block_count() - 1;
  for (const int ranks : {2, 4})
    for (const std::int64_t micro_batches : {1, 2}) {
      SCOPED_TRACE(text(ranks, " ranks, ", micro_batches, " micro-batches"));
      plan::Plan plan = plan_of(job, {.dp = ranks, .micro_batches = micro_batches});
      plan.stages[0].runs = {{0, last, {.dp = ranks}}, {last, last + 1, {.tp = ranks}}};
      expect_same(train_on_images(job, plan, images, labels), one, initial);
    }
}

TEST(VisionPlans, TheSamePlanTwiceIsTheSameRun) {
  model::JobSpec job = vision_job("{arch: resnet18, image: 32, classes: 10}", kBatch, 0.01);
  job.model = narrowed(job.model);
  const auto [images, labels] = random_images(job.model);
  const Degrees degrees{.dp = 2, .pp = 2, .zero = 3, .micro_batches = 2};
  EXPECT_EQ(train_on_images(job, plan_of(job, degrees), images, labels).losses,
            train_on_images(job, plan_of(job, degrees), images, labels).losses);
}

}  // namespace
}  // namespace tessera::train
