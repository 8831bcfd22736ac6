#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/expect_error.hpp"
#include "cost/cost.hpp"
#include "plan/plan.hpp"
#include "plan/plan_helper.hpp"
#include "search/search.hpp"
#include "sim/sim.hpp"

namespace tessera::search {
namespace {

using tessera::testing::error_of;
using ::testing::HasSubstr;

TEST(Search, GivesTheSameAnswerTwice) {
  const auto job = plan::job_of({.layers = 6, .hidden = 256, .global_batch = 32});
  const auto cluster = plan::gpu_cluster(2, 4);
  EXPECT_EQ(to_json(search(job, cluster, {}).best), to_json(search(job, cluster, {}).best));
}

TEST(Search, HonoursEveryFixedDegree) {
  const auto job =
      plan::job_of({.layers = 6, .parallel = "{dp: 2, pp: 2, tp: 2, zero: 1, micro_batches: 4, schedule: gpipe, recompute: full}"});
  const auto cluster = plan::gpu_cluster(1, 8);
  const plan::Plan plan = search(job, cluster, {}).best;
  EXPECT_EQ(plan.world_size(), 8);
  EXPECT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.micro_batches, 4);
  EXPECT_EQ(plan.schedule, plan::Schedule::gpipe);
  // The embedding has nothing to compute again.
  EXPECT_EQ(plan.stages[0].runs[0].strategy, (plan::Strategy{2, 2, 1, model::Recompute::none}));
  EXPECT_EQ(plan.stages[0].runs[1].strategy, (plan::Strategy{2, 2, 1, model::Recompute::full}));
}

TEST(Search, UsesTheNumberOfWorkersThatLocalSays) {
  const auto job = plan::job_of({.cluster = "{local: {devices: 2, threads: 1}}"});
  const auto cluster = plan::cpu_cluster(8);
  const plan::Plan plan = search(job, cluster, {}).best;
  EXPECT_EQ(plan.world_size(), 2);
  EXPECT_EQ(plan.ranks[1].threads, 1);
}

TEST(Search, FixedDegreesMayAskForMoreWorkersThanCores) {
  const auto job = plan::job_of({.parallel = "{dp: 2, pp: 2, tp: 1}"});
  const plan::Plan plan = search(job, plan::cpu_cluster(2), {}).best;
  EXPECT_EQ(plan.world_size(), 4);
  EXPECT_EQ(plan.ranks[3].threads, 1);
}

TEST(Search, CutsSequencesWhereWorkersAreGivenTheDegree) {
  const auto cluster = plan::cpu_cluster(4);
  for (const char* context : {"ring", "ulysses"}) {
    const auto job = plan::job_of({.parallel = text("{dp: 1, pp: 1, tp: 2, cp: 2, context: ", context, "}")});
    const plan::Plan plan = search(job, cluster, {}).best;
    EXPECT_NO_THROW(check(plan, job, cluster));
    for (const plan::StrategyRun& run : plan.stages[0].runs) EXPECT_EQ(run.strategy.cp, 2);
    const model::ContextKind kind = plan.stages[0].strategy_of(1).context;
    EXPECT_EQ(kind == model::ContextKind::ulysses ? "ulysses" : "ring", std::string(context));
  }
  // The number of workers is that of all degrees, and nothing is cut along the sequence unasked.
  EXPECT_EQ(search(plan::job_of({.parallel = "{dp: 2, pp: 1, tp: 1, cp: 2}"}), cluster, {}).best.world_size(), 4);
  EXPECT_EQ(search(plan::job_of({.parallel = "{tp: 1}"}), cluster, {}).best.stages[0].strategy_of(0).cp, 1);
  const auto refusal = [&](const plan::JobShape& options) { return error_of([&] { search(plan::job_of(options), cluster, {}); }); };
  EXPECT_THAT(refusal({.seq = 36, .parallel = "{cp: 4}"}).what(), HasSubstr("cp 4 does not cut a sequence of 36 into twice as many parts"));
  EXPECT_THAT(refusal({.heads = 2, .kv_heads = 2, .parallel = "{tp: 1, cp: 4, context: ulysses}"}).what(),
              HasSubstr("cp 4 does not divide the 2 query heads of a rank, which context: ulysses deals out"));
  EXPECT_THAT(refusal({.parallel = "{cp: 1, context: ring}"}).what(), HasSubstr("context says how context parallelism exchanges"));
}

TEST(Search, SpreadsExpertsOfModelsThatHaveThem) {
  EXPECT_THAT(error_of([&] { search(plan::job_of({.parallel = "{ep: 2}"}), plan::cpu_cluster(4), {}); }).what(),
              HasSubstr("ep 2 spreads experts, and the model has none"));
}

// Of experts that every worker holds, the gradients cross the network; of tokens on their way to other workers' experts, less.
TEST(Search, SpreadsExpertsWhereTheNetworkIsSlow) {
  const auto job =
      model::read_job(ConfigNode::parse("name: experts\nmodel: {arch: mixtral, hidden: 64, layers: 4, heads: 4, ffn: 256, experts: 8, "
                                        "experts_per_token: 1, seq: 16, vocab: 64}\n"
                                        "data: {source: synthetic}\ntrain: {global_batch: 4, optimizer: {kind: adamw, lr: "
                                        "1.0e-3}}\nparallel: {dp: 4, pp: 1, tp: 1, zero: 0}\n",
                                        "train.yaml"));
  auto cluster = plan::cpu_cluster(4);
  const auto ep_of = [&](const cluster::ClusterSpec& on) { return search(job, on, {}).best.stages[0].strategy_of(1).ep; };
  for (cluster::ResourceGroup& group : cluster.groups) group.inside.bandwidth = group.network.bandwidth = BytesPerSecond(1e6);
  EXPECT_GT(ep_of(cluster), 1);
  for (cluster::ResourceGroup& group : cluster.groups) {
    group.inside.bandwidth = group.network.bandwidth = BytesPerSecond(1e13);
    group.inside.latency = group.network.latency = Seconds(1e-3);
  }
  EXPECT_EQ(ep_of(cluster), 1);
}

// With train.placement, experts stand on several hosts, whatever else would be faster.
TEST(Search, SpreadsExpertsOverHostsWhereSamplesArePlaced) {
  const auto job = [](const std::string& parallel, const char* placement = "samples_and_experts") {
    return model::read_job(
        ConfigNode::parse(text("name: experts\nmodel: {arch: mixtral, hidden: 64, layers: 4, heads: 4, ffn: 256, experts: ",
                               "8, experts_per_token: 1, seq: 16, vocab: 64}\ndata: {source: synthetic}\ntrain: ",
                               "{global_batch: 8, placement: {kind: ", placement, "}}\nparallel: ", parallel, "\n"),
                          "train.yaml"));
  };
  for (const auto& [nodes, cores] : {std::pair{4, 1}, {2, 2}}) {
    auto cluster = plan::cpu_cluster(cores, nodes);
    for (cluster::ResourceGroup& group : cluster.groups) group.network.latency = Seconds(1e-3);
    EXPECT_EQ(search(job("{pp: 1, tp: 1, cp: 1}", "\"off\""), cluster, {}).best.stages[0].strategy_of(1).ep, 1);
    for (const char* parallel : {"auto", "{micro_batches: 2}", "{zero: 1}"}) {
      SCOPED_TRACE(parallel);
      const plan::Plan best = search(job(parallel), cluster, {}).best;
      EXPECT_NO_THROW(check(best, job(parallel), cluster));
      EXPECT_GT(best.stages[0].strategy_of(1).ep, 1);
    }
  }
  EXPECT_THAT(error_of([&] { search(job("auto"), plan::cpu_cluster(4), {}); }).what(),
              HasSubstr("train.yaml:4:37: train.placement, and all ranks are on one host"));
}

TEST(Search, TakesSequenceParallelismAndRecomputedAttentionWhereWorkersAreGivenThem) {
  const auto cluster = plan::cpu_cluster(4);
  const auto job = plan::job_of({.parallel = "{dp: 2, pp: 1, tp: 2, sequence_parallel: true, recompute: selective}"});
  const plan::Plan plan = search(job, cluster, {}).best;
  EXPECT_NO_THROW(check(plan, job, cluster));
  for (const plan::StrategyRun& run : plan.stages[0].runs) EXPECT_TRUE(run.strategy.sequence_parallel);
  EXPECT_EQ(plan.stages[0].strategy_of(1).recompute, model::Recompute::selective);
  const auto whole = plan::job_of({.parallel = "{dp: 2, pp: 1, tp: 2}"});
  const plan::Plan plain = search(whole, cluster, {}).best;
  EXPECT_FALSE(plain.stages[0].strategy_of(1).sequence_parallel);
  EXPECT_LT(plan.predicted->memory[0], plain.predicted->memory[0]);
  EXPECT_THAT(error_of([&] { search(plan::job_of({.parallel = "{tp: 1, sequence_parallel: true}"}), cluster, {}); }).what(),
              HasSubstr("sequence_parallel cuts what tensor parallelism leaves whole, and tp is 1"));
  EXPECT_THAT(error_of([&] { search(plan::job_of({.seq = 33, .parallel = "{tp: 2, sequence_parallel: true}"}), cluster, {}); }).what(),
              HasSubstr("tp 2 does not divide seq 33, which sequence_parallel cuts"));
  // Accelerators have it unless told otherwise.
  for (const bool said : {true, false}) {
    const auto on = plan::job_of({.precision = "bf16", .parallel = text("{tp: 2, sequence_parallel: ", said ? "true" : "false", "}")});
    for (const plan::Stage& stage : search(on, plan::gpu_cluster(1, 4), {}).best.stages)
      for (const plan::StrategyRun& run : stage.runs) EXPECT_EQ(run.strategy.sequence_parallel, said);
  }
}

// On CPU workers too, cut so that no other cut of one block moved is faster.
TEST(Search, PutsSeveralStagesOnEachRankWhereTheScheduleDoes) {
  const auto cluster = plan::cpu_cluster(4);
  for (const auto& [schedule, stages] : {std::pair{"interleaved, chunks: 3", 6}, {"zb-v", 4}, {"dualpipe-v", 4}}) {
    const auto job = plan::job_of({.layers = 12, .global_batch = 16, .parallel = text("{dp: 1, pp: 2, tp: 2, schedule: ", schedule, "}")});
    const plan::Plan plan = search(job, cluster, {}).best;
    EXPECT_NO_THROW(check(plan, job, cluster));
    ASSERT_EQ(plan.stages.size(), static_cast<std::size_t>(stages)) << schedule;
    EXPECT_EQ(plan.world_size(), 4);
    const profile::Profile none;
    cost::CostModel cost_model(job.model, job.train, cluster, none);
    for (std::size_t s = 0; s + 1 < plan.stages.size(); ++s)
      for (const int move : {-1, 1}) {
        plan::Plan other = plan;
        other.stages[s].runs.back().last += move;
        other.stages[s + 1].runs.front().first += move;
        if (other.stages[s].runs.back().first == other.stages[s].runs.back().last ||
            other.stages[s + 1].runs.front().first == other.stages[s + 1].runs.front().last)
          continue;
        EXPECT_LE(plan.predicted->step.value, sim::predict(other, cost_model).step.value * (1 + 1e-6)) << schedule << " stage " << s;
      }
  }
}

TEST(Search, ShardsFixedReplicasOnlyWhereItPays) {
  const auto zero_of = [](const std::string& parallel) {
    return search(plan::job_of({.parallel = parallel}), plan::cpu_cluster(4), {}).best.stages.front().runs.front().strategy.zero;
  };
  EXPECT_EQ(zero_of("{dp: 2, zero: 1}"), 1);
  EXPECT_EQ(zero_of("{dp: 2, zero: 0}"), 0);
  // Left out, it is chosen: where the replicas do not fit otherwise.
  const plan::JobShape shape{.layers = 4,
                             .hidden = 1024,
                             .heads = 8,
                             .kv_heads = 8,
                             .ffn = 4096,
                             .vocab = 8192,
                             .cluster = "{local: {devices: 4}}",
                             .parallel = "{dp: 4}"};
  plan::JobShape whole = shape;
  whole.parallel = "{dp: 4, zero: 0}";
  const auto held = [](const plan::Plan& plan) {
    Bytes sum;
    for (const Bytes bytes : plan.predicted->memory) sum += bytes;
    return sum.value >> 20;
  };
  const std::int64_t all = held(search(plan::job_of(whole), plan::cpu_cluster(4), {}).best);
  const plan::Plan chosen = search(plan::job_of(shape), plan::cpu_cluster(4, 1, all), {}).best;
  EXPECT_GT(chosen.stages.front().runs.front().strategy.zero, 0);
}

TEST(Search, PlansDegreesThatPadAndSaysByHowMuch) {
  const model::JobSpec job = plan::job_of({.hidden = 48, .heads = 6, .kv_heads = 6, .ffn = 97, .vocab = 259, .parallel = "{tp: 3}"});
  const auto cluster = plan::cpu_cluster(6);
  const SearchResult result = search(job, cluster, {});
  EXPECT_EQ(result.best.stages.front().runs.front().strategy.tp, 3);
  EXPECT_NO_THROW(plan::check(result.best, job, cluster));
  EXPECT_THAT(explain(result, job.model, cluster),
              AllOf(HasSubstr("vocab 259 is padded to 261 for tp 3"), HasSubstr("ffn 97 is padded to 99 for tp 3")));
  const model::JobSpec bf16 =
      plan::job_of({.hidden = 48, .heads = 6, .kv_heads = 6, .ffn = 97, .vocab = 259, .precision = "bf16", .parallel = "{tp: 3}"});
  EXPECT_EQ(search(bf16, plan::gpu_cluster(1, 6), {}).best.stages.front().runs.front().strategy.tp, 3);
}

TEST(Search, SaysWhichDegreeDoesNotDivideAndWhichNearestOneDoes) {
  const auto refusal = [](const std::string& parallel, int kv_heads) {
    return error_of([&] {
      search(plan::job_of({.heads = 8, .kv_heads = kv_heads, .global_batch = 8, .parallel = parallel}), plan::gpu_cluster(1, 8), {});
    });
  };
  const Error tensor = refusal("{tp: 3}", 4);
  EXPECT_EQ(tensor.code(), ErrorCode::invalid_config);
  EXPECT_THAT(tensor.what(), HasSubstr("train.yaml:6"));
  EXPECT_THAT(tensor.what(), HasSubstr("tp 3 does not divide heads 8"));
  EXPECT_THAT(tensor.what(), HasSubstr("nearest: tp 2"));
  EXPECT_THAT(refusal("{tp: 8}", 2).what(), HasSubstr("nearest: tp 2"));
  EXPECT_THAT(refusal("{dp: 3}", 4).what(), HasSubstr("dp 3 does not divide train.global_batch 8"));
  EXPECT_THAT(refusal("{pp: 9}", 4).what(), HasSubstr("nearest: pp 6"));
  EXPECT_THAT(refusal("{dp: 2, micro_batches: 3}", 4).what(), HasSubstr("nearest: micro_batches 2"));
  EXPECT_THAT(refusal("{dp: 4, tp: 4}", 4).what(), HasSubstr("the degrees need 16 devices; gpus offers 8"));
}

TEST(Search, KeepsVisionModelsAndT5WholeOnWorkers) {
  for (const char* model : {"resnet50", "vit-b-16", "t5-base"}) {
    SCOPED_TRACE(model);
    const auto cluster = plan::cpu_cluster(4);
    for (const char* parallel : {"auto", "{dp: 2}", "{pp: 2}"}) {
      const model::JobSpec job = plan::preset_job(model, 16, parallel);
      const plan::Plan best = search(job, cluster, {}).best;
      check(best, job, cluster);
      for (const plan::Stage& stage : best.stages)
        for (const plan::StrategyRun& run : stage.runs) EXPECT_EQ(run.strategy.tp * run.strategy.cp, 1);
    }
    const auto refusal = [&](const std::string& parallel) {
      return std::string(error_of([&] { search(plan::preset_job(model, 16, parallel), cluster, {}); }).what());
    };
    EXPECT_THAT(refusal("{tp: 2}"), AllOf(HasSubstr("which the trainer keeps whole"), HasSubstr("nearest: tp 1")));
    EXPECT_THAT(refusal("{cp: 2}"), AllOf(HasSubstr("cp 2 "), HasSubstr("nearest: cp 1")));
    EXPECT_THAT(refusal("{recompute: selective}"), HasSubstr("recompute selective is of attention"));
  }
}

TEST(Search, CutsAClassifierBesideReplicasOfWholeBlocks) {
  const auto job = [](const std::string& parallel) {
    return model::read_job(ConfigNode::parse(text("name: t\nmodel: {arch: vgg16, image: 64, classes: 1000}\ndata: {source: synthetic}\n",
                                                  "train: {global_batch: 32, precision: fp32}\nparallel: ", parallel, "\n"),
                                             "train.yaml"));
  };
  const auto cluster = plan::cpu_cluster(1, 4);
  const plan::Plan best = search(job("{dp: 1, tp: 4}"), cluster, {}).best;
  check(best, job("auto"), cluster);
  ASSERT_EQ(best.stages.size(), 1);
  ASSERT_EQ(best.stages.front().runs.size(), 2);
  EXPECT_EQ(best.stages.front().runs[0].strategy.dp, 4);
  EXPECT_EQ(best.stages.front().runs[0].strategy.tp, 1);
  EXPECT_EQ(best.stages.front().runs[1].strategy.tp, 4);
  // Most parameters need no exchange then.
  EXPECT_LT(best.predicted->step, search(job("{dp: 4, tp: 1, pp: 1}"), cluster, {}).best.predicted->step);
}

TEST(Search, LeavesBatchNormMoreThanOneValueAChannel) {
  const model::JobSpec job = model::read_job(ConfigNode::parse(
      "name: t\nmodel: {arch: resnet18, image: 32, classes: 10}\ndata: {source: synthetic}\ntrain: {global_batch: 8}\nparallel: {dp: 2}\n",
      "train.yaml"));
  const auto cluster = plan::cpu_cluster(4);
  const SearchResult result = search(job, cluster, {});
  check(result.best, job, cluster);
  for (const Candidate& candidate : result.runners_up) check(candidate.plan, job, cluster);
}

// Between links that hide an exchange behind the backward pass and links so slow that other plans are better.
TEST(Search, DelaysTheExchangeWhereTheLinkIsSlowAndNothingIsClipped) {
  auto job = plan::job_of({.layers = 6,
                           .hidden = 512,
                           .heads = 8,
                           .kv_heads = 8,
                           .ffn = 4096,
                           .seq = 1024,
                           .global_batch = 2,
                           .cluster = "{lab: {hosts: 2, gbit: 1, cpu: 1}}"});
  job.parallel.pp = 1;  // which exchanges less
  auto cluster = plan::cpu_cluster(1, 2);
  int delayed = 0;
  for (double bandwidth = 1e7; bandwidth < 1e9; bandwidth *= 1.3) {
    cluster.groups[0].network.bandwidth = BytesPerSecond(bandwidth);
    job.train.optimizer.clip = 1;
    const plan::Plan at_once = search(job, cluster, {}).best;
    EXPECT_FALSE(at_once.delayed_exchange);
    job.train.optimizer.clip = 0;
    const SearchResult result = search(job, cluster, {});
    check(result.best, job, cluster);
    if (!result.best.delayed_exchange) continue;
    ++delayed;
    EXPECT_LT(result.best.predicted->step, at_once.predicted->step);
    EXPECT_THAT(explain(result, job.model, cluster), HasSubstr("gradient exchange delayed"));
  }
  EXPECT_GT(delayed, 0);
  EXPECT_LT(delayed, 15);
}

TEST(Search, DelaysTheExchangeOfGivenDegreesUnlessItIsToldNotTo) {
  auto cluster = plan::cpu_cluster(1, 2);
  cluster.groups[0].network.bandwidth = BytesPerSecond(3e7);
  const auto job_with = [](const std::string& clip, const std::string& rest) {
    return model::read_job(ConfigNode::parse(
        text("model: {arch: llama, hidden: 512, layers: 6, heads: 8, ffn: 4096, seq: 1024, vocab: "
             "256}\ntrain: {global_batch: 2, optimizer: {clip: ",
             clip, "}}\ncluster: {lab: {hosts: 2, gbit: 1, cpu: 1}}\nparallel: {dp: 2, pp: 1, zero: 0, micro_batches: 1", rest, "}\n"),
        "train.yaml"));
  };
  const plan::Plan at_once = search(job_with("0", ", delayed_exchange: false"), cluster, {}).best;
  const plan::Plan delayed = search(job_with("0", ""), cluster, {}).best;
  EXPECT_FALSE(at_once.delayed_exchange);
  EXPECT_TRUE(delayed.delayed_exchange);
  EXPECT_LT(delayed.predicted->step, at_once.predicted->step);
  // What clipping costs is said, unless little is gained or the exchange was to stay where it is.
  const auto clipped = job_with("1", "");
  const plan::Plan best = search(clipped, cluster, {}).best;
  EXPECT_EQ(to_json(best), to_json(at_once));
  const std::string said = clipping_text(best, clipped, cluster, {});
  EXPECT_THAT(said, HasSubstr("train.optimizer.clip 1 needs the norm"));
  EXPECT_THAT(said, HasSubstr(text("a step of ", to_text(delayed.predicted->step), ", ")));
  EXPECT_EQ(clipping_text(best, job_with("1", ", delayed_exchange: false"), cluster, {}), "");
  EXPECT_EQ(clipping_text(best, job_with("0", ""), cluster, {}), "");
  cluster.groups[0].network.bandwidth = BytesPerSecond(1e11);
  EXPECT_EQ(clipping_text(search(clipped, cluster, {}).best, clipped, cluster, {}), "");
}

TEST(Search, StalenessLeavesGradientsWhole) {
  auto job = plan::job_of({.hidden = 512, .heads = 8, .kv_heads = 8, .ffn = 2048, .seq = 512, .global_batch = 48});
  job.train.optimizer.clip = 0;
  job.parallel.dp = 2;
  job.parallel.delayed_exchange = true;
  job.parallel.staleness = 1;
  const auto cluster = plan::cpu_cluster(1, 2);
  const plan::Plan best = search(job, cluster, {}).best;
  EXPECT_EQ(best.staleness, 1);
  check(best, job, cluster);
}

TEST(Explain, ShowsStagesPartsMemoryAndWhatRunnersUpLose) {
  const auto job = plan::job_of({.layers = 6, .hidden = 512, .seq = 256, .global_batch = 8});
  const auto cluster = plan::cpu_cluster(4);
  const SearchResult result = search(job, cluster, {});
  const std::string shown = explain(result, job.model, cluster);
  EXPECT_THAT(shown, HasSubstr("embed"));
  EXPECT_THAT(shown, HasSubstr("forward"));
  EXPECT_THAT(shown, HasSubstr("optimizer"));
  EXPECT_THAT(shown, HasSubstr("memory"));
  ASSERT_FALSE(result.runners_up.empty());
  EXPECT_THAT(shown, HasSubstr(result.runners_up.front().family));
  EXPECT_THAT(shown, HasSubstr(to_text(result.best.predicted->step)));
}

}  // namespace
}  // namespace tessera::search
