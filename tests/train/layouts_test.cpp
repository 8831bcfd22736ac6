// Stages that are cut differently: what they pass to each other, and what they share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <map>
#include <numeric>

#include "checkpoint/checkpoint.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

using model::Recompute;
using plan::Schedule;

constexpr std::int64_t kSteps = 5;

// How the ranks of a place in the pipeline cut their blocks.
struct Layout {
  int dp = 1;
  int tp = 1;
  int zero = 0;
  std::vector<plan::Share> shares = {};
  int cp = 1;
  bool sequence_parallel = false;
  int width() const { return dp * cp * tp; }
  void apply_to(plan::Strategy& strategy) const {
    strategy.dp = dp;
    strategy.tp = tp;
    strategy.zero = zero;
    strategy.cp = cp;
    strategy.sequence_parallel = sequence_parallel;
  }
};

// Any that make `width`, sequences cut or not.
Layout any_layout(int width) {
  Layout out;
  while (out.width() < width) {
    int* const degree = *rc::gen::element(&out.dp, &out.tp, &out.cp);
    *degree *= 2;
  }
  out.zero = *rc::gen::inRange(0, 4);
  out.sequence_parallel = out.tp > 1 && *rc::gen::arbitrary<bool>();
  return out;
}

// Embedding and half of the layers as `before`, the others as `after`, on the same ranks.
plan::Plan plan_of_runs(const model::JobSpec& job, const Layout& before, const Layout& after) {
  plan::Plan plan = plan_of(job, {.dp = before.width()});
  plan::Stage& stage = plan.stages.front();
  plan::StrategyRun upper = stage.runs.front();
  stage.runs.front().last = upper.first = stage.last_block() / 2;
  before.apply_to(stage.runs.front().strategy);
  after.apply_to(upper.strategy);
  stage.runs.push_back(upper);
  return plan;
}

// Of `degrees` the micro-batches, the schedule and what blocks do; one place for each layout.
plan::Plan plan_of_layouts(const model::JobSpec& job, const std::vector<Layout>& layouts, Degrees degrees) {
  degrees.pp = static_cast<int>(layouts.size());
  plan::Plan plan = plan_of(job, degrees);
  std::vector<int> begins;
  int world = 0;
  for (const Layout& layout : layouts) {
    begins.push_back(world);
    world += layout.width();
  }
  plan.ranks.resize(static_cast<std::size_t>(world));
  for (plan::Stage& stage : plan.stages) {
    const int place = stage.ranks.front();  // of one rank each
    const Layout& layout = layouts[static_cast<std::size_t>(place)];
    stage.ranks.resize(static_cast<std::size_t>(layout.width()));
    std::iota(stage.ranks.begin(), stage.ranks.end(), begins[static_cast<std::size_t>(place)]);
    stage.shares = layout.shares;
    for (plan::StrategyRun& run : stage.runs) layout.apply_to(run.strategy);
  }
  return plan;
}

// Gradients that are exchanged late cannot be clipped.
model::JobSpec job_of(bool tied, bool clips = true) {
  auto job = tiny_job({}, tied ? ", tied: true" : "");
  if (!clips) job.train.optimizer.clip = 0;
  return job;
}

const Curve& one_device(bool tied, bool clips = true) {
  static std::map<std::pair<bool, bool>, Curve> curves;
  const auto [found, fresh] = curves.try_emplace({tied, clips});
  if (fresh) found->second = train_curve(job_of(tied, clips), {}, kSteps);
  return found->second;
}

std::unique_ptr<data::Dataset> data_of(const model::JobSpec& job) { return data::open_dataset(job.data, job.model, job.train.seed); }

const std::vector<std::vector<Layout>> kPipelines = {
    {{2}, {1}},
    {{1}, {2, 1, 1}},
    {{1}, {4}, {2, 1, 3}},
    // Parts that cut each other: 8 and 8 samples before 6, 5 and 5.
    {{2}, {3, 1, 0, {{1, 6}, {2, 10}}}},
    {{2, 1, 0, {{1, 13}, {1, 3}}}, {2}},
    {{2, 1, 1, {{1, 13}, {1, 3}}}, {2, 1, 0, {{1, 5}, {1, 11}}}},
    {{1}, {1, 2}},
    {{1, 2}, {1}},
    {{2}, {1, 2}, {2}},
    {{1, 4}, {2, 2, 1}},
    {{2, 2, 1}, {3, 1, 0, {{1, 6}, {2, 10}}}},
    // Rows of sequences cut among tensor-parallel ranks on one side, or otherwise on the other.
    {{.tp = 2, .sequence_parallel = true}, {.tp = 2}},
    {{.tp = 2}, {.tp = 2, .sequence_parallel = true}},
    {{.tp = 4, .sequence_parallel = true}, {.dp = 2, .tp = 2, .zero = 1, .sequence_parallel = true}},
    {{.dp = 2}, {.tp = 2, .sequence_parallel = true}, {.dp = 1}},
    // Sequences cut into chunks, which follow each other otherwise in the micro-batch than in any other cut.
    {{.cp = 2}, {.dp = 1}},
    {{.dp = 2}, {.cp = 4}},
    {{.cp = 2}, {.tp = 2}, {.cp = 2}},
    {{.tp = 2, .cp = 2, .sequence_parallel = true}, {.dp = 2}},
    {{.tp = 2, .cp = 2}, {.tp = 2, .cp = 2, .sequence_parallel = true}},
    {{.dp = 2, .shares = {{1, 13}, {1, 3}}}, {.dp = 2, .zero = 3, .shares = {{2, 6}, {2, 10}}, .cp = 2}},
};

// Of the pipelines above, and of one stage whose blocks are cut in two ways.
std::vector<plan::Plan> plans_of(const model::JobSpec& job) {
  std::vector<plan::Plan> out;
  for (const std::vector<Layout>& pipeline : kPipelines) out.push_back(plan_of_layouts(job, pipeline, {}));
  const std::vector<model::ParameterSpec>& head = job.model.repeats.back().block.parameters;
  if (std::all_of(head.begin(), head.end(), [](const model::ParameterSpec& parameter) { return parameter.tied_to.empty(); }))
    for (const auto& [before, after] : {std::pair{Layout{2}, Layout{1, 2}},
                                        {Layout{2, 2, 1}, Layout{4}},
                                        {Layout{1, 4}, Layout{2, 2, 3}},
                                        {Layout{.tp = 2}, Layout{.tp = 2, .sequence_parallel = true}},
                                        {Layout{.tp = 4, .sequence_parallel = true}, Layout{.dp = 2, .tp = 2, .sequence_parallel = true}},
                                        {Layout{.dp = 4}, Layout{.tp = 4, .sequence_parallel = true}},
                                        {Layout{.cp = 2}, Layout{.dp = 2}},
                                        {Layout{.tp = 4}, Layout{.dp = 2, .zero = 1, .cp = 2}},
                                        {Layout{.tp = 2, .cp = 2, .sequence_parallel = true}, Layout{.cp = 4}}})
      out.push_back(plan_of_runs(job, before, after));
  return out;
}

TEST(Layouts, StagesThatAreCutDifferentlyTrainTheSameModel) {
  for (const bool tied : {false, true}) {
    const auto job = job_of(tied);
    for (const plan::Plan& plan : plans_of(job)) {
      const Curve curve = train_curve_of(job, plan, kSteps);
      EXPECT_LT(worst_difference(curve.losses, one_device(tied).losses), 1e-5) << plan::to_json(plan);
      EXPECT_LT(worst_difference(curve.norms, one_device(tied).norms), 1e-4) << plan::to_json(plan);
    }
  }
}

// Of all schedules, with ZeRO, recomputation and late exchanges.
RC_GTEST_PROP(Layouts, RandomPipelinesTrainTheSameModel, ()) {
  Degrees degrees;
  degrees.schedule = *rc::gen::element(Schedule::gpipe, Schedule::one_f_one_b, Schedule::zb_h1, Schedule::interleaved, Schedule::zb_v);
  degrees.chunks = degrees.schedule == Schedule::interleaved || degrees.schedule == Schedule::zb_v ? 2 : 1;
  degrees.micro_batches = *rc::gen::element(2, 4);
  degrees.recompute = *rc::gen::element(Recompute::none, Recompute::full);
  degrees.delayed_exchange = *rc::gen::arbitrary<bool>();
  const bool tied = *rc::gen::arbitrary<bool>();
  std::vector<Layout> pipeline;
  for (int place = 0; place < 2; ++place) {
    Layout layout = any_layout(*rc::gen::element(1, 2, 4));
    const std::int64_t samples = 16 / degrees.micro_batches;
    if (const int replica = layout.width() / 2; layout.dp == 2 && degrees.chunks == 1 && *rc::gen::arbitrary<bool>())
      layout.shares = {{replica, samples - 1}, {replica, 1}};
    pipeline.push_back(layout);
  }
  const auto job = job_of(tied, !degrees.delayed_exchange);
  const plan::Plan plan = plan_of_layouts(job, pipeline, degrees);
  RC_LOG() << plan::to_json(plan) << "\n";
  const Curve curve = train_curve_of(job, plan, kSteps);
  const Curve& one = one_device(tied, !degrees.delayed_exchange);
  RC_ASSERT(worst_difference(curve.losses, one.losses) < 1e-5);
  // Those of late exchanges are known a step later.
  if (!degrees.delayed_exchange) RC_ASSERT(worst_difference(curve.norms, one.norms) < 1e-4);
}

// Every block of a rank in its own way, in stages of one width.
RC_GTEST_PROP(Layouts, BlocksThatAreCutAnewTrainTheSameModel, ()) {
  Degrees degrees;
  degrees.schedule = *rc::gen::element(Schedule::gpipe, Schedule::one_f_one_b, Schedule::zb_h1, Schedule::interleaved, Schedule::zb_v);
  degrees.chunks = degrees.schedule == Schedule::interleaved || degrees.schedule == Schedule::zb_v ? 2 : 1;
  degrees.micro_batches = 2;
  const std::vector<std::vector<Layout>> pipelines = {{{4}}, {{2}, {2}}, {{2}, {4}}, {{4}, {1}}, {{2, 1, 0, {{1, 3}, {1, 5}}}, {2}}};
  std::vector<Layout> pipeline = *rc::gen::elementOf(pipelines);
  if (degrees.chunks > 1) pipeline = {{2}, {4}};
  const auto job = tiny_job();
  plan::Plan plan = plan_of_layouts(job, pipeline, degrees);
  for (plan::Stage& stage : plan.stages) {
    if (!stage.shares.empty()) continue;
    std::vector<plan::StrategyRun> runs;
    for (int block = stage.first_block(); block < stage.last_block(); ++block) {
      plan::Strategy strategy;
      any_layout(stage.width()).apply_to(strategy);
      strategy.context = *rc::gen::element(model::ContextKind::ring, model::ContextKind::ulysses);
      strategy.recompute = *rc::gen::element(Recompute::none, Recompute::full);
      runs.push_back({block, block + 1, strategy});
    }
    stage.runs = std::move(runs);
  }
  RC_LOG() << plan::to_json(plan) << "\n";
  const Curve curve = train_curve_of(job, plan, kSteps);
  RC_ASSERT(worst_difference(curve.losses, one_device(false).losses) < 1e-5);
  RC_ASSERT(worst_difference(curve.norms, one_device(false).norms) < 1e-4);
}

// Neither the heads' parts of a replica's tensors nor those of the vocabulary are equal: 16 x 32 x 64 elements and 256 rows over three
// ranks.
TEST(Layouts, PartsNeedNotDivide) {
  for (const char* tied : {"false", "true"}) {
    const auto job = model::read_job(ConfigNode::parse(
        text("name: odd\nmodel: {arch: llama, hidden: 64, layers: 4, heads: 3, head_dim: 16, ffn: 96, seq: 32, vocab: 256, tied: ", tied,
             "}\ndata: {source: synthetic}\ntrain: {global_batch: 16, optimizer: {kind: adamw, lr: 1.0e-3}}\n"),
        "odd.yaml"));
    const Curve one = train_curve(job, {}, kSteps);
    for (const std::vector<Layout>& pipeline : std::vector<std::vector<Layout>>{{{1, 3, 1}, {2}}, {{2}, {1, 3}}}) {
      const Curve curve = train_curve_of(job, plan_of_layouts(job, pipeline, {}), kSteps);
      EXPECT_LT(worst_difference(curve.losses, one.losses), 1e-5) << tied;
      EXPECT_LT(worst_difference(curve.norms, one.norms), 1e-4) << tied;
    }
  }
}

TEST(Layouts, TheSamePlanTwiceIsBitwiseTheSameRun) {
  const auto job = tiny_job();
  for (const plan::Plan& plan : plans_of(job)) {
    const Curve first = train_curve_of(job, plan, kSteps);
    const Curve second = train_curve_of(job, plan, kSteps);
    EXPECT_EQ(first.losses, second.losses) << plan::to_json(plan);
    EXPECT_EQ(first.norms, second.norms) << plan::to_json(plan);
  }
}

TEST(Layouts, Bf16StaysCloseToOneDevice) {
  const auto job = tiny_job("precision: bf16");
  for (const plan::Plan& plan : plans_of(job)) {
    EXPECT_LT(worst_difference(train_curve_of(job, plan, kSteps).losses, one_device(false).losses), 1e-2) << plan::to_json(plan);
  }
}

// Every sequence counts once, however the widths divide a micro-batch.
TEST(Layouts, EvaluateAsOneDeviceDoes) {
  const auto job = tiny_job();
  const auto dataset = data_of(job);
  constexpr std::int64_t kSequences = 11;
  EvaluationReport expected;
  on_ranks(1, [&](comm::Communicator& comm) {
    Trainer trainer(job, plan_of(job, {}), *dataset, comm);
    trainer.initialize();
    expected = trainer.evaluate(kSequences);
  });
  for (const plan::Plan& plan : plans_of(job)) {
    on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
      Trainer trainer(job, plan, *dataset, comm);
      trainer.initialize();
      const EvaluationReport report = trainer.evaluate(kSequences);
      EXPECT_EQ(report.tokens, expected.tokens) << plan::to_json(plan);
      EXPECT_NEAR(report.loss, expected.loss, 1e-5) << plan::to_json(plan);
    });
  }
}

// The tensors of the newest checkpoint of a folder.
std::map<std::string, at::Tensor> tensors_in(const std::filesystem::path& folder) {
  const checkpoint::Reader reader(*checkpoint::latest(folder));
  std::map<std::string, at::Tensor> out;
  for (const auto& tensor : reader.tensors()) out[tensor.name] = reader.read(tensor.name);
  return out;
}

TEST(Layouts, CheckpointsAreLoadedBitForBitUnderOthers) {
  const auto job = tiny_job();
  const auto dataset = data_of(job);
  const auto loaded_and_saved = [&](const plan::Plan& plan, const std::filesystem::path& from, const std::filesystem::path& to) {
    on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
      Trainer trainer(job, plan, *dataset, comm);
      if (from.empty()) {
        trainer.initialize();
        trainer.step();
        trainer.step();
      } else {
        trainer.load(*checkpoint::latest(from));
      }
      trainer.save(real_file_system(), to, 3);
    });
    return tensors_in(to);
  };
  const TemporaryFolder scratch;
  const plan::Plan first = plan_of_layouts(job, {{2}, {1, 2}}, {});
  std::filesystem::path before = scratch / "trained";
  const auto expected = loaded_and_saved(first, {}, before);
  const std::vector<plan::Plan> plans = plans_of(job);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const std::filesystem::path folder = scratch / std::to_string(i);
    const auto found = loaded_and_saved(plans[i], before, folder);
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(tensor.equal(found.at(name))) << name << " under plan " << i;
    before = folder;
  }
}

// Whoever waits for a rank that is gone says where in its program it was.
TEST(Layouts, ARankThatWaitsSaysForWhat) {
  const auto job = tiny_job();
  const auto dataset = data_of(job);
  const plan::Plan plan = plan_of_layouts(job, {{2}, {1}}, {});
  const auto all = [&](comm::Communicator& comm) {
    if (comm.rank() == 1) return comm.abort("gone");
    Trainer trainer(job, plan, *dataset, comm);
    trainer.initialize();
    try {
      trainer.step();
      ADD_FAILURE() << "rank " << comm.rank() << " does not miss rank 1";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  testing::ContainsRegex(
                      text("rank ", comm.rank(),
                           " waits for [a-z ]+ of micro-batch 0 (from rank|to be taken by rank|with ranks?) .*.instruction [0-9]+.: ")));
    }
  };
  EXPECT_THROW(on_ranks(plan.world_size(), all), Error);
}

}  // namespace
}  // namespace tessera::train
