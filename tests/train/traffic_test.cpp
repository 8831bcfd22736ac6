// What ranks send in a step is what the plan's programs say, to the byte.
#include "train/traffic.hpp"

#include <gtest/gtest.h>

#include "train/job_helper.hpp"
#include "train/vision_helper.hpp"

namespace tessera::train {

namespace {

constexpr std::int64_t kSteps = 3;

std::string words(const TrafficByDimension& all) {
  std::string out;
  for (const auto& [name, traffic] : all)
    out += text(name, ": ", traffic.messages, " messages, ", traffic.collectives, " collectives, ", traffic.bytes.value, " bytes\n");
  return out;
}

void expect_as_planned(const model::JobSpec& job, const plan::Plan& plan) {
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  TrafficByDimension all;
  comm::Options options;
  options.shared_memory = false;
  on_ranks(
      plan.world_size(),
      [&](comm::Communicator& comm) {
        Trainer trainer(job, plan, *dataset, comm);
        trainer.initialize();
        for (std::int64_t i = 0; i < kSteps; ++i) trainer.step();
        trainer.finish();
        trainer.evaluate(2);
        const TrafficByDimension mine = sent(comm);
        if (comm.rank() == 0) all = mine;
      },
      options);
  EXPECT_FALSE(all.empty());
  EXPECT_EQ(words(all), words(planned(plan, job.model, kSteps)));
}

class PlannedTraffic : public testing::TestWithParam<Degrees> {};

TEST_P(PlannedTraffic, OfAStepIsWhatThePlanSays) {
  SCOPED_TRACE(to_text(GetParam()));
  auto job = tiny_job();
  if (GetParam().delayed_exchange) job.train.optimizer.clip = 0;
  expect_as_planned(job, plan_of(job, GetParam()));
}

using model::ContextKind;
using model::Recompute;
using plan::Schedule;
INSTANTIATE_TEST_SUITE_P(
    Trainer, PlannedTraffic,
    testing::Values(Degrees{.dp = 2}, Degrees{.dp = 3, .zero = 1, .micro_batches = 2}, Degrees{.dp = 2, .zero = 2, .micro_batches = 2},
                    Degrees{.dp = 4, .zero = 3, .micro_batches = 2, .recompute = Recompute::full}, Degrees{.dp = 4, .zero = 3, .shards = 2},
                    Degrees{.dp = 4, .zero = 1, .shards = 2}, Degrees{.tp = 2}, Degrees{.dp = 2, .tp = 2},
                    Degrees{.tp = 4, .micro_batches = 2, .recompute = Recompute::full},
                    Degrees{.tp = 4, .micro_batches = 2, .sequence_parallel = true},
                    Degrees{.tp = 2, .recompute = Recompute::full, .sequence_parallel = true}, Degrees{.cp = 2},
                    Degrees{.micro_batches = 2, .cp = 4}, Degrees{.recompute = Recompute::full, .cp = 2},
                    Degrees{.recompute = Recompute::selective, .cp = 4}, Degrees{.cp = 4, .context = ContextKind::ulysses},
                    Degrees{.recompute = Recompute::selective, .cp = 2, .context = ContextKind::ulysses},
                    Degrees{.recompute = Recompute::full, .cp = 2, .context = ContextKind::ulysses}, Degrees{.pp = 2, .micro_batches = 4},
                    Degrees{.pp = 4, .micro_batches = 4, .schedule = Schedule::gpipe},
                    Degrees{.pp = 2, .micro_batches = 4, .schedule = Schedule::interleaved, .chunks = 2},
                    Degrees{.pp = 2, .micro_batches = 4, .schedule = Schedule::zb_h1},
                    Degrees{.pp = 2, .micro_batches = 4, .schedule = Schedule::zb_v, .chunks = 2},
                    Degrees{.dp = 2, .pp = 2, .zero = 3, .micro_batches = 2}, Degrees{.dp = 2, .tp = 2, .zero = 1},
                    Degrees{.pp = 2, .tp = 2, .micro_batches = 2, .sequence_parallel = true},
                    Degrees{.dp = 2, .micro_batches = 2, .delayed_exchange = true},
                    Degrees{.dp = 2, .pp = 2, .zero = 1, .micro_batches = 2, .delayed_exchange = true}));

TEST(TrafficOfATrainer, OfStagesAndBlocksThatAreCutDifferentlyIsWhatThePlanSays) {
  const auto job = tiny_job();
  plan::Plan plan = plan_of(job, {.dp = 2, .pp = 2, .micro_batches = 2});
  plan::Stage& first = plan.stages[0];
  plan::StrategyRun last = first.runs.back();
  first.runs.back().last -= 1;
  last.first = last.last - 1;
  last.strategy.dp = 1;
  last.strategy.tp = 2;
  first.runs.push_back(last);
  expect_as_planned(job, plan);
  for (plan::StrategyRun& run : plan.stages[1].runs) {
    run.strategy.dp = 1;
    run.strategy.tp = 2;
  }
  expect_as_planned(job, plan);
}

TEST(TrafficOfATrainer, OfLatentAttentionIsWhatThePlanSays) {
  const auto job = model::read_job(
      ConfigNode::parse("name: tiny\nmodel: {arch: deepseek, hidden: 64, layers: 3, heads: 4, q_lora: 24, kv_lora: 16, nope_dim: "
                        "8, rope_dim: 8, v_dim: 12, ffn: 96, dense_layers: 1, experts: 4, experts_per_token: 4, expert_ffn: "
                        "40, shared_ffn: 40, seq: 32, vocab: 256}\ndata: {source: synthetic}\ntrain: {global_batch: 16}\n",
                        "tiny.yaml"));
  for (const Degrees& degrees :
       {Degrees{.tp = 2}, Degrees{.tp = 2, .sequence_parallel = true}, Degrees{.recompute = Recompute::full, .cp = 2},
        Degrees{.tp = 2, .recompute = Recompute::selective, .cp = 2, .context = ContextKind::ulysses},
        Degrees{.dp = 2, .tp = 2, .sequence_parallel = true, .ep = 2}}) {
    SCOPED_TRACE(to_text(degrees));
    expect_as_planned(job, plan_of(job, degrees));
  }
}

TEST(TrafficOfATrainer, OfExpertsIsWhatThePlanSays) {
  // Each token goes to every expert, so that no message depends on what the router has learned.
  auto job =
      model::read_job(ConfigNode::parse("name: tiny\nmodel: {arch: mixtral, hidden: 64, layers: 3, heads: 4, kv_heads: 2, ffn: 40, "
                                        "experts: 4, experts_per_token: 4, seq: 32, vocab: "
                                        "256}\ndata: {source: synthetic}\ntrain: {global_batch: 16}\n",
                                        "tiny.yaml"));
  for (const Degrees& degrees : {Degrees{.dp = 2, .ep = 2}, Degrees{.dp = 4, .micro_batches = 2, .ep = 4},
                                 Degrees{.dp = 2, .recompute = Recompute::full, .ep = 2}, Degrees{.dp = 4, .zero = 3, .ep = 2},
                                 Degrees{.dp = 2, .tp = 2, .ep = 2}, Degrees{.dp = 2, .tp = 2, .sequence_parallel = true, .ep = 2}}) {
    SCOPED_TRACE(to_text(degrees));
    expect_as_planned(job, plan_of(job, degrees));
  }
}

TEST(TrafficOfATrainer, OfSynchronizedBatchNormIsWhatThePlanSays) {
  auto job = vision_job("{arch: resnet18, image: 32, classes: 10, batch_norm: synchronized}", 16, 0.01);
  job.model = narrowed(job.model);
  for (const Degrees& degrees : {Degrees{.dp = 2}, Degrees{.dp = 4, .zero = 1, .micro_batches = 2, .recompute = Recompute::full},
                                 Degrees{.dp = 2, .pp = 2, .zero = 3, .micro_batches = 2, .schedule = Schedule::zb_h1}}) {
    SCOPED_TRACE(to_text(degrees));
    expect_as_planned(job, plan_of(job, degrees));
  }
}

}  // namespace
}  // namespace tessera::train
