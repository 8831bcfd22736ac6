// A vocabulary of 259 and a feed-forward width of 97, which neither 2 nor 3 divides: what is padded is never seen.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <cmath>

#include "checkpoint/hugging_face.hpp"
#include "program/program.hpp"
#include "train/generate.hpp"
#include "train/job_helper.hpp"
#include "train/loop.hpp"

namespace tessera::train {
namespace {

using model::Recompute;
using plan::Schedule;

constexpr std::int64_t kSteps = 6;

model::JobSpec odd_job(bool tied, const std::string& extra = {}) {
  return model::read_job(ConfigNode::parse(
      text("name: odd\nmodel: {arch: llama, hidden: 48, layers: 3, heads: 6, kv_heads: 6, ffn: 97, seq: 32, vocab: 259, tied: ",
           tied ? "true" : "false",
           "}\ndata: {source: synthetic}\ntrain: {global_batch: 12, optimizer: {kind: adamw, lr: 1.0e-3, weight_decay: 0.3}", extra, "}\n"),
      "odd.yaml"));
}

const Curve& whole_curve(bool tied) {
  static const Curve curves[] = {train_curve(odd_job(false), {}, kSteps), train_curve(odd_job(true), {}, kSteps)};
  return curves[tied ? 1 : 0];
}

void expect_follows(const Curve& curve, const Curve& expected, double tolerance, const std::string& plan) {
  ASSERT_EQ(curve.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < curve.losses.size(); ++i) {
    EXPECT_NEAR(curve.losses[i], expected.losses[i], tolerance * expected.losses[i]) << plan << " step " << i;
    EXPECT_NEAR(curve.norms[i], expected.norms[i], 100 * tolerance * expected.norms[i]) << plan << " step " << i;
  }
}

class PaddedPlan : public testing::TestWithParam<Degrees> {};

TEST_P(PaddedPlan, TrainsTheSameModelAsOneDevice) {
  for (const bool tied : {false, true})
    expect_follows(train_curve(odd_job(tied), GetParam(), kSteps), whole_curve(tied), 1e-6, to_text(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Trainer, PaddedPlan,
                         testing::Values(Degrees{1, 1, 2}, Degrees{1, 1, 3}, Degrees{1, 2, 2, 0, 4}, Degrees{1, 2, 3, 0, 4},
                                         Degrees{2, 1, 2, 1, 2}, Degrees{2, 1, 3, 1, 2}, Degrees{2, 2, 3, 1, 2},
                                         Degrees{1, 1, 3, 0, 2, Schedule::one_f_one_b, Recompute::full},
                                         Degrees{1, 2, 3, 0, 4, Schedule::zb_h1}, Degrees{1, 1, 6},
                                         Degrees{1, 2, 2, 0, 2, Schedule::one_f_one_b, Recompute::none, false, 1, 0, true}),
                         [](const auto& info) {
                           std::string name = to_text(info.param);
                           std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
                           return name;
                         });

TEST(Padding, StaysCloseInBf16) {
  const auto job = odd_job(false, ", precision: bf16");
  expect_follows(train_curve(job, {2, 1, 3, 1, 2}, kSteps), train_curve(job, {}, kSteps), 1e-2, "bf16");
}

// Trains `steps` further from `before`, where there is one, and saves into `folder`. Returns the losses.
std::vector<double> go_on(const model::JobSpec& job, const Degrees& degrees, const std::optional<std::filesystem::path>& before,
                          std::int64_t steps, const std::filesystem::path& folder) {
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const plan::Plan plan = plan_of(job, degrees);
  std::vector<double> losses;
  on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm);
    before ? trainer.load(*before) : trainer.initialize();
    for (std::int64_t i = 0; i < steps; ++i) {
      const double loss = trainer.step().loss;
      if (comm.rank() == 0) losses.push_back(loss);
    }
    trainer.save(real_file_system(), folder, 3);
  });
  return losses;
}

void expect_same_tensors(const std::filesystem::path& one, const std::filesystem::path& other, const std::string& what) {
  const checkpoint::Reader a(*checkpoint::latest(one));
  const checkpoint::Reader b(*checkpoint::latest(other));
  const auto tensors = a.tensors();
  ASSERT_EQ(tensors.size(), b.tensors().size()) << what;
  for (const checkpoint::TensorInfo& info : tensors) {
    EXPECT_EQ(info.shape, b.tensor(info.name).shape) << what << " " << info.name;
    EXPECT_TRUE(at::equal(a.read(info.name), b.read(info.name))) << what << " " << info.name;
  }
}

TEST(Padding, IsInNoCheckpointAndTheWeightsBeginTheSameUnderAnyDegree) {
  for (const bool tied : {false, true}) {
    const auto job = odd_job(tied);
    const TemporaryFolder folder;
    go_on(job, {}, {}, 0, folder / "whole");
    EXPECT_EQ(checkpoint::Reader(*checkpoint::latest(folder / "whole")).tensor("model.embed_tokens.weight").shape,
              (std::vector<std::int64_t>{259, 48}));
    for (const Degrees& degrees : {Degrees{1, 1, 2}, Degrees{1, 1, 3}, Degrees{2, 1, 3, 1, 2}, Degrees{1, 2, 3, 0, 2}}) {
      go_on(job, degrees, {}, 0, folder / to_text(degrees));
      expect_same_tensors(folder / "whole", folder / to_text(degrees), to_text(degrees));
    }
  }
}

TEST(Padding, IsAddedAndDroppedByResumingBitForBit) {
  const auto job = odd_job(true);
  const TemporaryFolder folder;
  go_on(job, {2, 1, 3, 1, 2}, {}, 2, folder / "0");
  int last = 0;
  for (const Degrees& degrees : {Degrees{}, Degrees{1, 1, 3}, Degrees{1, 2, 2, 0, 2}, Degrees{2, 1, 3, 1, 2}, Degrees{2, 1, 2, 1}}) {
    const std::string before = std::to_string(last++);
    go_on(job, degrees, *checkpoint::latest(folder / before), 0, folder / std::to_string(last));
    expect_same_tensors(folder / before, folder / std::to_string(last), to_text(degrees));
  }
}

TEST(Padding, ResumesFromAnyDegreeOnTheSameCurve) {
  const auto job = odd_job(false);
  const TemporaryFolder folder;
  std::vector<double> losses;
  std::optional<std::filesystem::path> before;
  for (const Degrees& degrees : {Degrees{2, 1, 3, 1}, Degrees{}, Degrees{1, 2, 2, 0, 2}}) {
    const auto here = folder / to_text(degrees);
    const auto part = go_on(job, degrees, before, 2, here);
    losses.insert(losses.end(), part.begin(), part.end());
    before = *checkpoint::latest(here);
  }
  const std::vector<double>& expected = whole_curve(false).losses;
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-6 * expected[i]) << i;
}

TEST(Padding, IsInNoExport) {
  const auto job = odd_job(false);
  const TemporaryFolder folder;
  for (const int degree : {1, 3}) {
    const auto checkpoints = folder / text("tp", degree);
    go_on(job, {1, 1, degree}, {}, 0, checkpoints);
    checkpoint::export_hf(*checkpoint::latest(checkpoints), job.model, {}, folder / text("hf", degree));
  }
  for (const char* file : {"model.safetensors", "config.json"})
    EXPECT_EQ(read_whole(folder / "hf1" / file), read_whole(folder / "hf3" / file)) << file;
}

TEST(Padding, IsNeitherEvaluatedNorGenerated) {
  const auto job = odd_job(false);
  const TemporaryFolder folder;
  const auto dataset = data::TextDataset::open(job.data, 32, 259, job.train.seed, data::default_cache_dir());
  std::vector<double> losses;
  for (const int degree : {1, 3})
    on_ranks(degree, [&](comm::Communicator& comm) {
      Trainer trainer(job, plan_of(job, {1, 1, degree}), *dataset, comm);
      trainer.initialize();
      const double loss = trainer.evaluate(8).loss;
      if (comm.rank() == 0) losses.push_back(loss);
    });
  EXPECT_NEAR(losses[1], losses[0], 1e-6 * losses[0]);
  go_on(job, {1, 1, 3}, {}, 1, folder.path());
  Predictor predictor(job.model, *checkpoint::latest(folder.path()));
  EXPECT_EQ(predictor.logits({1, 2, 3}).size(), 3u * 259u);
  std::uint32_t largest = 0;
  // So hot that all tokens are about as likely: of 600 draws about ten are among the last four.
  predictor.generate({1}, 600, {.temperature = 1e6}, 1000, [&](std::uint32_t token) {
    largest = std::max(largest, token);
    return true;
  });
  EXPECT_LT(largest, 259u);
  EXPECT_GE(largest, 255u);
}

}  // namespace
}  // namespace tessera::train
