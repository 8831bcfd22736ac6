#include "plan/plan.hpp"
#include "search/search.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "base/expect_error.hpp"
#include "plan/plan_helper.hpp"

namespace tessera::search {
namespace {

using tessera::testing::error_of;

TEST(Accelerators, NameTheFamiliesAndTheFront) {
  const auto job = plan::preset_job("llama-2-7b", 64);
  const auto cluster = plan::gpu_cluster(1, 8, "a100-40");
  const SearchResult result = search(job, cluster, {}, {.top = 9, .vendors = {}, .front = true, .effort = 300'000});
  std::vector<std::string> names = {result.best_family};
  for (const Candidate& candidate : result.runners_up) {
    names.push_back(candidate.family);
    EXPECT_GE(candidate.plan.predicted->step, result.best.predicted->step);
    EXPECT_NO_THROW(check(candidate.plan, job, cluster));
  }
  // The best plan has no pipeline and is not said again under that name; without sharding nothing fits.
  for (const char* name : {"blocks cut one by one", "data parallel, ZeRO-3", "one dp x tp x pp for all"})
    EXPECT_THAT(names, ::testing::Contains(name));
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("no pipeline")));
  ASSERT_FALSE(result.too_large.empty());
  EXPECT_EQ(result.too_large.front().family, "data parallel");
  ASSERT_GT(result.front.size(), 2u);
  for (std::size_t i = 1; i < result.front.size(); ++i) {
    EXPECT_GT(result.front[i].step, result.front[i - 1].step);
    EXPECT_LT(result.front[i].memory, result.front[i - 1].memory);
  }
  EXPECT_LE(result.bound, result.best.predicted->step.value);
  EXPECT_GE(result.bound, 0.95 * result.best.predicted->step.value);
}

// Time stands still until the search over all blocks has begun, and is then over.
TEST(Accelerators, NothingBeginsAfterTheTimeIsOver) {
  class Jumping : public Clock {
   public:
    Seconds now() const override { return Seconds(++looks_ > 3 ? 1e6 : 0); }
    void sleep(Seconds) override {}

   private:
    mutable std::atomic<int> looks_ = 0;
  };
  const auto job = plan::preset_job("llama-2-7b", 64);
  const auto cluster = plan::gpu_cluster(1, 8, "a100-40");
  const Jumping clock;
  const SearchResult result = search(job, cluster, {}, {.top = 9, .vendors = {}, .front = true, .seconds = 10, .clock = &clock});
  EXPECT_NO_THROW(check(result.best, job, cluster));
  EXPECT_TRUE(result.runners_up.empty());
  EXPECT_TRUE(result.too_large.empty());
  EXPECT_EQ(result.front.size(), 1u);
}

TEST(Accelerators, KeepToWhatIsFixedAndChooseTheRest) {
  const auto cluster = plan::gpu_cluster(2, 8);
  const double bound = search(plan::preset_job("llama-2-7b", 64, "auto"), cluster, {}, {.top = 0, .vendors = {}, .effort = 300'000}).bound;
  EXPECT_GT(bound, 0);
  const auto planned = [&](const std::string& parallel, const char* model = "llama-2-7b") {
    const model::JobSpec job = plan::preset_job(model, 64, parallel);
    plan::Plan plan = search(job, cluster, {}, {.top = 0, .vendors = {}, .effort = 300'000}).best;
    EXPECT_NO_THROW(check(plan, job, cluster)) << parallel;
    return plan;
  };
  const auto all = [](const plan::Plan& plan, const auto& holds) {
    for (const plan::Stage& stage : plan.stages)
      for (const plan::StrategyRun& run : stage.runs)
        if (!holds(run.strategy)) return false;
    return true;
  };
  const plan::Plan tensor = planned("{tp: 4}");
  EXPECT_TRUE(all(tensor, [](const plan::Strategy& s) { return s.tp == 4; }));
  EXPECT_GE(tensor.predicted->step.value, bound * (1 - 1e-9));
  EXPECT_TRUE(all(planned("{zero: 3, tp: 1}"), [](const plan::Strategy& s) { return s.zero == 3 && s.tp == 1; }));
  EXPECT_TRUE(all(planned("{cp: 2, dp: 4}"), [](const plan::Strategy& s) { return s.cp == 2 && s.dp == 4; }));
  const plan::Plan stages = planned("{pp: 4, micro_batches: 16, schedule: zb-h1, recompute: none}");
  EXPECT_EQ(stages.stages.size(), 4u);
  EXPECT_EQ(stages.micro_batches, 16);
  EXPECT_EQ(stages.schedule, plan::Schedule::zb_h1);
  EXPECT_TRUE(all(stages, [](const plan::Strategy& s) { return s.recompute == model::Recompute::none; }));
  EXPECT_EQ(planned("{schedule: gpipe, pp: 2}").schedule, plan::Schedule::gpipe);
  // Templates alone know these.
  const plan::Plan interleaved = planned("{schedule: interleaved, pp: 4}");
  EXPECT_EQ(interleaved.schedule, plan::Schedule::interleaved);
  EXPECT_GE(interleaved.stages.size(), 8u);
  EXPECT_EQ(planned("{schedule: zb-v, pp: 4}").stages.size(), 8u);
  EXPECT_EQ(planned("{schedule: dualpipe-v, pp: 2, tp: 2}").schedule, plan::Schedule::dualpipe_v);
  EXPECT_TRUE(all(planned("{schedule: zb-v, pp: 2, dp: 2, tp: 2}"), [](const plan::Strategy& s) { return s.cp == 2; }));
  EXPECT_TRUE(all(planned("{schedule: zb-v, pp: 2, tp: 8, zero: 1}"), [](const plan::Strategy& s) { return s.zero == 0; }));
  // Vocabularies are padded.
  EXPECT_TRUE(all(planned("{tp: 8, pp: 1}", "gpt3-6.7b"), [](const plan::Strategy& s) { return s.tp == 8; }));
  bool spread = false;
  for (const plan::Stage& stage : planned("{ep: 4}", "qwen3-30b-a3b").stages)
    for (const plan::StrategyRun& run : stage.runs) spread = spread || run.strategy.ep == 4;
  EXPECT_TRUE(spread);
}

// Of a T5 another trainer cuts layers; this one holds them whole on every device.
TEST(Accelerators, KeepWholeWhatTheTrainerDoesNotCut) {
  const auto job = [](const std::string& parallel) { return plan::preset_job("t5-large", 16, parallel); };
  const auto cluster = plan::gpu_cluster(1, 8, "h100-sxm");
  const plan::Plan for_others = search(job("{tp: 2, dp: 4, pp: 1}"), cluster, {}).best;
  EXPECT_NO_THROW(check(for_others, job("auto"), cluster));
  EXPECT_THAT(error_of([&] { check_trained(for_others, job("auto").model); }).what(),
              ::testing::HasSubstr("tp 2 cuts blocks of arch t5, which stand whole"));
  const SearchOptions trained{.vendors = {"nvidia"}};
  for (const char* parallel : {"auto", "{pp: 2}"})
    EXPECT_NO_THROW(check_trained(search(job(parallel), cluster, {}, trained).best, job("auto").model));
  for (const char* parallel : {"{tp: 2}", "{cp: 2}"})
    EXPECT_THAT(error_of([&] { search(job(parallel), cluster, {}, trained); }).what(), ::testing::HasSubstr("nearest: "));
}

// Of models of which not every degree cuts all: odd sequences, few heads, shared embeddings.
TEST(Accelerators, WhateverIsFoundPassesTheCheck) {
  const std::vector<std::string> models = {
      "{arch: llama, hidden: 768, layers: 5, heads: 12, kv_heads: 4, ffn: 2048, seq: 1023, vocab: 50257, tied: true}",
      "{arch: llama, hidden: 512, layers: 3, heads: 4, ffn: 1024, seq: 4096, vocab: 200000, tied: true}",
      "{arch: gpt, hidden: 768, layers: 4, heads: 6, seq: 1030, vocab: 50257}",
      "{preset: vit-b-16}",
      "{arch: t5, hidden: 512, layers: 3, decoder_layers: 4, heads: 8, ffn: 1024, seq: 513, decoder_seq: 128, vocab: 32128}",
      "{arch: mixtral, hidden: 512, layers: 3, heads: 8, ffn: 1024, experts: 8, experts_per_token: 2, seq: 2048, vocab: 32000}",
      "{preset: resnet50}"};
  int shared = 0;
  for (const std::string& model : models)
    for (const auto& [nodes, devices] : {std::pair{1, 4}, {2, 8}})
      for (const char* parallel :
           {"auto", "{pp: 1}", "{pp: 2, schedule: zb-v}", "{cp: 2, context: ulysses}", "{sequence_parallel: true}"}) {
        const model::JobSpec job =
            model::read_job(ConfigNode::parse(text("name: t\nmodel: ", model,
                                                   "\ndata: {source: synthetic}\ntrain: {global_batch: 32, precision: bf16, optimizer: "
                                                   "{clip: 0}}\nparallel: ",
                                                   parallel, "\n"),
                                              "train.yaml"));
        const auto cluster = plan::gpu_cluster(nodes, devices, devices == 4 ? "l40s" : "h100-sxm");
        SearchResult result;
        try {
          result = search(job, cluster, {}, {.top = 3, .vendors = {}, .effort = 100'000});
        } catch (const Error& error) {
          // Not every model can be cut as it is told.
          EXPECT_NE(std::string(parallel), "auto") << model << error.what();
          EXPECT_EQ(error.code(), ErrorCode::invalid_config) << model << parallel << error.what();
          continue;
        }
        std::vector<plan::Plan> plans = {result.best};
        for (const auto& candidates : {result.runners_up, result.close, result.too_large})
          for (const Candidate& candidate : candidates) plans.push_back(candidate.plan);
        for (const plan::Plan& plan : plans) {
          EXPECT_NO_THROW(check(plan, job, cluster)) << model << parallel << to_json(plan);
          shared += job.model.tied_embeddings && plan.stages.front().ranks == plan.stages.back().ranks ? 1 : 0;
          for (const plan::Stage& stage : plan.stages)
            for (const plan::StrategyRun& run : stage.runs)
              EXPECT_TRUE(!job.parallel.sequence_parallel || run.strategy.sequence_parallel == (run.strategy.tp > 1));
        }
      }
  EXPECT_GT(shared, 20);
}

TEST(Accelerators, AllThatIsShownKeepsToWhatIsFixed) {
  const auto cluster = plan::gpu_cluster(2, 8);
  const SearchResult result = search(plan::preset_job("llama-2-7b", 64, "{tp: 2, recompute: full, micro_batches: 8}"), cluster, {},
                                     {.top = 9, .vendors = {}, .front = true, .effort = 300'000});
  std::vector<plan::Plan> plans = {result.best};
  for (const auto& candidates : {result.runners_up, result.close})
    for (const Candidate& candidate : candidates) plans.push_back(candidate.plan);
  EXPECT_GT(plans.size(), 2u);
  for (const plan::Plan& plan : plans) {
    EXPECT_EQ(plan.micro_batches, 8);
    for (const plan::Stage& stage : plan.stages)
      for (const plan::StrategyRun& run : stage.runs) {
        EXPECT_EQ(run.strategy.tp, 2);
        const bool end = run.first == 0 || run.last == 34;
        EXPECT_TRUE(end || run.strategy.recompute == model::Recompute::full);
      }
  }
  EXPECT_FALSE(result.front.empty());
}

TEST(Accelerators, SayWhichFixedDegreeDoesNotDivide) {
  const auto refusal_on = [](const cluster::ClusterSpec& cluster, const std::string& parallel, const char* model) {
    const Error error = error_of([&] { search(plan::preset_job(model, 64, parallel), cluster, {}, {.top = 0, .vendors = {}}); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_config) << parallel;
    EXPECT_EQ(error.where().line, 5) << parallel;
    return std::string(error.what());
  };
  const auto refusal = [&](const std::string& parallel, const char* model = "llama-3-8b") {
    return refusal_on(plan::gpu_cluster(2, 8), parallel, model);
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal("{tp: 3}"), AllOf(HasSubstr("tp 3 does not divide heads 32"), HasSubstr("nearest: tp 2")));
  EXPECT_THAT(refusal("{tp: 16}"), AllOf(HasSubstr("tp 16 is more than the 8 devices"), HasSubstr("nearest: tp 8")));
  // Six would divide its twelve heads, but not the devices.
  EXPECT_THAT(refusal("{tp: 8}", "vit-b-16"), AllOf(HasSubstr("tp 8 does not divide heads 12"), HasSubstr("nearest: tp 4")));
  EXPECT_THAT(refusal("{cp: 3}"), HasSubstr("nearest: cp 2"));
  EXPECT_THAT(refusal("{cp: 2}", "resnet50"), HasSubstr("blocks of the model have none"));
  EXPECT_THAT(refusal("{pp: 40}"), AllOf(HasSubstr("pp 40 is more than the model's 34 blocks"), HasSubstr("nearest: pp 16")));
  EXPECT_THAT(refusal("{dp: 128}"), AllOf(HasSubstr("dp 128 does not divide train.global_batch 64"), HasSubstr("nearest: dp 16")));
  EXPECT_THAT(refusal("{dp: 32}"), AllOf(HasSubstr("dp 32 does not divide the 16 devices of gpus"), HasSubstr("nearest: dp 16")));
  EXPECT_THAT(refusal("{micro_batches: 7}"), HasSubstr("nearest: micro_batches 8"));
  EXPECT_THAT(refusal("{dp: 16, pp: 1, micro_batches: 8}"), HasSubstr("nearest: micro_batches 4"));
  EXPECT_THAT(refusal("{dp: 4, tp: 4, pp: 2}"), AllOf(HasSubstr("dp 4 x tp 4 x pp 2 needs 32 devices"), HasSubstr("gpus has 16")));
  EXPECT_THAT(refusal("{dp: 4, tp: 1, pp: 1}", "resnet50"), HasSubstr("makes 4 devices; gpus has 16, and all of them are used"));
  EXPECT_THAT(refusal("{ep: 2}"), HasSubstr("the model has none"));
  EXPECT_THAT(refusal("{ep: 3}", "qwen3-30b-a3b"), HasSubstr("nearest: ep 2"));
  EXPECT_THAT(refusal("{ep: 16, tp: 2}", "qwen3-30b-a3b"), AllOf(HasSubstr("the 8 ranks of dp x cp"), HasSubstr("nearest: ep 8")));
  EXPECT_THAT(refusal("{threads: 2}"), HasSubstr("threads are of CPU workers"));
  EXPECT_THAT(refusal("{recompute: selective}", "resnet50"), HasSubstr("recompute selective is of attention"));
  EXPECT_THAT(refusal("{schedule: interleaved, pp: 1}"), HasSubstr("schedule interleaved runs a pipeline, and pp is 1"));
  EXPECT_THAT(refusal("{schedule: zb-h2, pp: 8, micro_batches: 4}"), HasSubstr("from 15 micro-batches on"));
  // Devices that do not compute in the job's precision do not count.
  const auto mixed = cluster::read_cluster(ConfigNode::parse(
      "name: two\nbetween: rdma-100g\ngroups:\n  - {name: new, device: h100-sxm, nodes: 1, devices_per_node: 8, inside: nvlink4}\n"
      "  - {name: old, device: v100-32, nodes: 1, devices_per_node: 16, inside: nvlink2}\n",
      "cluster.yaml"));
  EXPECT_THAT(refusal_on(mixed, "{dp: 16}", "llama-3-8b"), HasSubstr("nearest: dp 8"));
  EXPECT_THAT(refusal_on(mixed, "{tp: 16}", "llama-3-8b"), HasSubstr("nearest: tp 8"));
}

TEST(Accelerators, SayWhatAPipelineOfSeveralStagesARankLacks) {
  const Error error = error_of(
      [] { search(plan::preset_job("llama-3-70b", 64, "{schedule: zb-v}"), plan::gpu_cluster(1, 4), {}, {.top = 0, .vendors = {}}); });
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  EXPECT_THAT(error.what(), AllOf(::testing::HasSubstr("the smallest plan needs "), ::testing::HasSubstr("its largest parts: ")));
}

}  // namespace
}  // namespace tessera::search
