// Samples of different lengths, dealt to groups of context-parallel ranks, train the model of one device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "plan/uneven_batch.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

using model::ContextKind;

constexpr std::int64_t kSteps = 4;

model::JobSpec job_of(const std::string& data, const std::string& model = "arch: llama, ffn: 96") {
  return model::read_job(
      ConfigNode::parse(text("name: lengths\nmodel: {", model, ", hidden: 64, layers: 3, heads: 4, seq: 128, vocab: 257}\ndata: {", data,
                             "}\ntrain: {global_batch: 24, optimizer: {kind: adamw, lr: 1.0e-3}}\n"),
                        "lengths.yaml"));
}

model::JobSpec lognormal_job() { return job_of("source: synthetic, lengths: {kind: lognormal, median: 12}"); }

struct Cut {
  int ranks = 4;
  int cp = 4;
  bool flexible = true;
  ContextKind context = ContextKind::ring;
  int zero = 0;
  model::Recompute recompute = model::Recompute::none;
};

// A rank holds at most 128 / cp tokens, so that the longest samples need cp ranks.
plan::Plan plan_of_cut(const model::JobSpec& job, const Cut& cut) {
  Degrees degrees{.dp = cut.ranks / cut.cp,
                  .zero = cut.zero,
                  .micro_batches = job.train.global_batch / (cut.ranks / cut.cp),
                  .recompute = cut.recompute};
  degrees.cp = cut.cp;
  degrees.context = cut.context;
  plan::Plan plan = plan_of(job, degrees);
  plan.lengths = plan::Lengths{{}, 1e-3, 1e-5, 1e-8};
  for (int degree = cut.flexible ? 1 : cut.cp; degree <= cut.cp; ++degree)
    if (cut.cp % degree == 0) plan.lengths->groups.push_back({degree, degree == 1 ? 0 : 1e-5});
  return plan;
}

Evaluated trained(const model::JobSpec& job, const plan::Plan& plan) {
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  Evaluated out;
  on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm);
    trainer.initialize();
    Evaluated mine;
    mine.before = trainer.evaluate(40).loss;
    for (std::int64_t i = 0; i < kSteps; ++i) {
      const StepReport report = trainer.step();
      mine.curve.losses.push_back(report.loss);
      mine.curve.norms.push_back(report.grad_norm);
    }
    mine.after = trainer.evaluate(40).loss;
    if (comm.rank() == 0) out = std::move(mine);
  });
  return out;
}

Evaluated on_one_device(const model::JobSpec& job) { return trained(job, plan_of_cut(job, {1, 1})); }

TEST(Lengths, EveryWayToDealThemTrainsAndEvaluatesTheModelOfOneDevice) {
  const auto job = lognormal_job();
  const Evaluated one = on_one_device(job);
  for (const Cut& cut : {Cut{4, 4}, Cut{4, 4, true, ContextKind::ulysses}, Cut{4, 4, false}, Cut{4, 2, true, ContextKind::ring, 1},
                         Cut{2, 1, true, ContextKind::ring, 1}, Cut{8, 4, true, ContextKind::ring, 1, model::Recompute::full},
                         Cut{4, 4, true, ContextKind::ulysses, 0, model::Recompute::selective}}) {
    SCOPED_TRACE(text(cut.ranks, " ranks, cp ", cut.cp, cut.flexible ? "" : " fixed"));
    expect_same(trained(job, plan_of_cut(job, cut)), one, 1e-5, 1e-4);
  }
}

// Samples that stand one behind the other do not see each other: padding each of them to the full length is the same.
TEST(Lengths, APackedSampleIsTrainedAsIfItStoodAlone) {
  const auto job = lognormal_job();
  plan::Plan padded = plan_of(job, {});
  ASSERT_FALSE(padded.lengths);
  const Curve one = train_curve_of(job, padded, kSteps);
  const Evaluated packed = trained(job, plan_of_cut(job, {4, 4}));
  EXPECT_LT(worst_difference(packed.curve.losses, one.losses), 1e-5);
  EXPECT_LT(worst_difference(packed.curve.norms, one.norms), 1e-4);
}

TEST(Lengths, OfDocumentsWithPromptsAndLearnedPositionsTrainTheModelOfOneDevice) {
  const TemporaryFolder folder;
  Random random(3);
  std::string lines;
  for (int i = 0; i < 800; ++i) {
    const auto word = [&](std::uint64_t longest) {
      return std::string(1 + random.below(longest), static_cast<char>('a' + random.below(20)));
    };
    lines += "{\"p\": \"" + word(6) + "\", \"a\": \"" + word(random.below(8) == 0 ? 180 : 20) + "\"}\n";
  }
  const std::string source =
      text("source: ", folder.write("documents.jsonl", lines).string(), ", tokenizer: {kind: bytes}, lengths: documents");
  for (const std::string& fields : {std::string(", prompt: p, answer: a"), std::string(", field: a")}) {
    const auto job = job_of(source + fields, "arch: gpt, dropout: 0");
    expect_same(trained(job, plan_of_cut(job, {4, 4})), on_one_device(job), 1e-5, 1e-4);
  }
}

TEST(Lengths, TwiceIsBitwiseTheSameRun) {
  const auto job = lognormal_job();
  const plan::Plan plan = plan_of_cut(job, {4, 4});
  const Evaluated first = trained(job, plan);
  const Evaluated second = trained(job, plan);
  EXPECT_EQ(first.curve.losses, second.curve.losses);
  EXPECT_EQ(first.curve.norms, second.curve.norms);
  EXPECT_EQ(first.after, second.after);
}

// Also under another plan, whose ranks have other passes.
TEST(Lengths, AResumedRunGoesOnWithTheSamplesOfItsStep) {
  const auto job = lognormal_job();
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const plan::Plan plan = plan_of_cut(job, {4, 4, true, ContextKind::ring, 1});
  const Evaluated whole = trained(job, plan);
  const TemporaryFolder folder;
  on_ranks(4, [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm);
    trainer.initialize();
    for (int i = 0; i < 2; ++i) trainer.step();
    trainer.save(real_file_system(), folder.path(), 3);
  });
  for (const plan::Plan& next : {plan, plan_of_cut(job, {2, 2})}) {
    std::vector<double> losses;
    on_ranks(next.world_size(), [&](comm::Communicator& comm) {
      Trainer trainer(job, next, *dataset, comm);
      trainer.load(checkpoint::find(folder.path()));
      for (std::int64_t i = 2; i < kSteps; ++i)
        if (const double loss = trainer.step().loss; comm.rank() == 0) losses.push_back(loss);
    });
    const std::vector<double> expected(whole.curve.losses.begin() + 2, whole.curve.losses.end());
    if (next.world_size() == 4) {
      EXPECT_EQ(losses, expected);
    }
    EXPECT_LT(worst_difference(losses, expected), 1e-5);
  }
}

// Ranks without a sample take part in the exchange of gradients.
TEST(Lengths, MoreRanksThanSamplesTrainTheModelOfOneDevice) {
  auto job = job_of("source: synthetic, lengths: {kind: uniform}");
  job.train.global_batch = 2;
  expect_same(trained(job, plan_of_cut(job, {4, 2})), on_one_device(job), 1e-5, 1e-4);
}

}  // namespace
}  // namespace tessera::train
