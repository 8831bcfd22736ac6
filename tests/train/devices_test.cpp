// Whole runs on another device than the host's CPU, whose memory nothing of the host reaches.
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.hpp"
#include "train/far_device_helper.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

struct Case {
  const char* what;
  model::JobSpec job;
  std::vector<Degrees> degrees;
  double losses, norms;  // differ by less
};

TEST(Devices, TrainTheSameModelAsACpu) {
  const std::vector<Case> cases = {
      {"dense",
       tiny_job(),
       {{},
        {.dp = 2, .zero = 1},
        {.dp = 2, .tp = 2, .zero = 3, .micro_batches = 2, .recompute = model::Recompute::full, .sequence_parallel = true},
        {.dp = 2, .zero = 2, .micro_batches = 2, .delayed_exchange = true},
        {.pp = 2, .micro_batches = 4, .schedule = plan::Schedule::zb_h1, .cp = 2}},
       1e-5,
       1e-4},
      {"bf16", tiny_job("precision: bf16"), {{.tp = 2, .cp = 2, .context = model::ContextKind::ulysses}}, 3e-3, 3e-2},
      {"experts", tiny_experts_job(), {{}, {.dp = 2, .ep = 2}, {.cp = 2}}, 1e-5, 1e-4},
      {"dropout", tiny_gpt_job(", dropout: 0.1"), {{}, {.dp = 2}}, 1e-5, 1e-4},
      {"bert", tiny_bert_job(", dropout: 0.1"), {{}, {.dp = 2}}, 1e-5, 1e-4},
  };
  for (const Case& one : cases)
    for (const Degrees& degrees : one.degrees) {
      const Curve expected = train_curve(one.job, {.delayed_exchange = degrees.delayed_exchange}, 4);
      const Curve curve = train_curve(one.job, degrees, 4, far_device());
      EXPECT_LT(worst_difference(curve.losses, expected.losses), one.losses) << one.what << " " << to_text(degrees);
      if (degrees.delayed_exchange) continue;
      EXPECT_LT(worst_difference(curve.norms, expected.norms), one.norms) << one.what << " " << to_text(degrees);
    }
}

TEST(Devices, ACheckpointGoesOnOnACpu) {
  const model::JobSpec job = tiny_job("precision: bf16");
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const TemporaryFolder folder;
  double there = 0;
  const plan::Plan plan = plan_of(job, {.dp = 2, .zero = 3, .micro_batches = 2});
  on_ranks(2, [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm, far_device());
    trainer.initialize();
    for (int i = 0; i < 3; ++i) trainer.step();
    trainer.begin_save(real_file_system(), folder.path(), 3);
    const double loss = trainer.step().loss;
    const auto ended = trainer.wait_for_save();
    ASSERT_TRUE(ended && !ended->error);
    if (comm.rank() == 0) there = loss;
  });
  on_ranks(1, [&](comm::Communicator& comm) {
    Trainer trainer(job, plan_of(job, {}), *dataset, comm);
    trainer.load(checkpoint::step_folder(folder.path(), 3));
    EXPECT_NEAR(trainer.step().loss, there, 3e-3 * there);
  });
}

}  // namespace
}  // namespace tessera::train
