#include <gtest/gtest.h>

#include "train/job_helper.hpp"
#include "train/loop.hpp"

namespace tessera::train {
namespace {

std::vector<double> losses_after_resume(const model::JobSpec& job, const Degrees& before, const Degrees& after, std::int64_t split,
                                        std::int64_t steps) {
  const TemporaryFolder scratch;
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const plan::Plan first = plan_of(job, before);
  on_ranks(first.world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, first, *dataset, comm);
    trainer.initialize();
    for (std::int64_t i = 0; i < split; ++i) trainer.step();
    trainer.save(real_file_system(), scratch.path(), 3);
  });
  std::vector<double> losses;
  const plan::Plan second = plan_of(job, after);
  on_ranks(second.world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, second, *dataset, comm);
    trainer.load(*checkpoint::latest(scratch.path()));
    EXPECT_EQ(trainer.next_step(), split);
    for (std::int64_t i = split; i < steps; ++i) {
      const double loss = trainer.step().loss;
      if (comm.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

std::vector<double> tail(const std::vector<double>& values, std::int64_t from) { return {values.begin() + from, values.end()}; }

TEST(Resume, UnderTheSamePlanIsBitwiseTheUninterruptedRun) {
  const auto job = tiny_job();
  for (const Degrees& degrees : {Degrees{}, Degrees{2, 1, 1, 1, 2}, Degrees{1, 2, 2, 0, 2}})
    EXPECT_EQ(losses_after_resume(job, degrees, degrees, 3, 6), tail(train_curve(job, degrees, 6).losses, 3)) << to_text(degrees);
}

// A checkpoint begins with what the last step has left to do.
TEST(Resume, OfAStepWhoseExchangeIsDelayedIsBitwiseToo) {
  auto job = tiny_job();
  job.train.optimizer.clip = 0;
  for (const Degrees& degrees : {Degrees{2, 1, 1, 1, 2, plan::Schedule::one_f_one_b, model::Recompute::none, true},
                                 Degrees{2, 2, 1, 0, 2, plan::Schedule::one_f_one_b, model::Recompute::none, true}})
    EXPECT_EQ(losses_after_resume(job, degrees, degrees, 3, 6), tail(train_curve(job, degrees, 6).losses, 3)) << to_text(degrees);
}

TEST(Resume, InBf16IsBitwiseToo) {
  const auto job = tiny_job("precision: bf16");
  const Degrees degrees{2, 1, 1, 1, 2};
  EXPECT_EQ(losses_after_resume(job, degrees, degrees, 3, 6), tail(train_curve(job, degrees, 6).losses, 3));
}

TEST(Resume, UnderAnotherPlanFollowsTheSameCurve) {
  const auto job = tiny_job();
  const auto expected = tail(train_curve(job, {}, 6).losses, 3);
  for (const auto& [before, after] : {std::pair{Degrees{2, 1, 2, 1}, Degrees{1, 4, 1, 0, 4}},
                                      std::pair{Degrees{1, 2, 1, 0, 2}, Degrees{2, 1, 2, 1}}, std::pair{Degrees{4, 1, 1, 1}, Degrees{}}}) {
    const auto losses = losses_after_resume(job, before, after, 3, 6);
    ASSERT_EQ(losses.size(), expected.size());
    for (std::size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], 1e-4 * expected[i]) << to_text(before) << " -> " << to_text(after);
  }
}

TEST(Resume, OfAnotherModelIsRefused) {
  const TemporaryFolder scratch;
  const auto job = tiny_job();
  const auto other = tiny_job({}, ", tied: true");
  const auto dataset = data::TextDataset::open(job.data, 32, 256, 1, data::default_cache_dir());
  on_ranks(1, [&](comm::Communicator& comm) {
    Trainer trainer(job, plan_of(job, {}), *dataset, comm);
    trainer.initialize();
    trainer.save(real_file_system(), scratch.path(), 3);
    const plan::Plan plan = plan_of(other, {});
    Trainer stranger(other, plan, *dataset, comm);
    EXPECT_THROW(stranger.load(*checkpoint::latest(scratch.path())), Error);
  });
}

}  // namespace
}  // namespace tessera::train
