#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <cmath>
#include <functional>
#include <optional>

#include "base/expect_error.hpp"
#include "cost/cost.hpp"
#include "cost/warm_up.hpp"
#include "plan/plan.hpp"
#include "plan/plan_helper.hpp"
#include "plan/tensor_cut.hpp"
#include "search/search.hpp"
#include "sim/sim.hpp"

namespace tessera::search {
namespace {

using tessera::testing::error_of;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Calls `visit` with every way to cut `blocks` blocks into `stages` stages.
void for_all_cuts(int blocks, int stages, const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> cuts = {0};
  const std::function<void()> extend = [&] {
    const int done = static_cast<int>(cuts.size());
    if (done == stages) {
      cuts.push_back(blocks);
      visit(cuts);
      cuts.pop_back();
      return;
    }
    for (int next = cuts.back() + 1; next <= blocks - (stages - done); ++next) {
      cuts.push_back(next);
      extend();
      cuts.pop_back();
    }
  };
  extend();
}

bool fits(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  const cluster::Device& device = cluster.groups[0].device;
  if (!device.is_cpu())
    return std::all_of(plan.predicted->memory.begin(), plan.predicted->memory.end(),
                       [&](Bytes bytes) { return bytes.value <= 0.95 * static_cast<double>(device.memory.value); });
  Bytes sum;
  for (Bytes bytes : plan.predicted->memory) sum += bytes;
  return sum.value <= 0.9 * static_cast<double>(device.memory.value);
}

// Ranks on the first nodes of the only group, so many of so many threads on each.
struct Layout {
  int nodes = 1;
  int on_node = 1;
  int threads = 1;
};

std::vector<Layout> layouts(const cluster::ResourceGroup& group) {
  const bool cpu = group.device.is_cpu();
  const int most = cpu ? group.device.cores : group.devices_per_node;
  std::vector<Layout> out;
  for (int nodes = 1; nodes <= group.nodes; ++nodes)
    for (int on_node = 1; on_node <= most; ++on_node)
      if (cpu ? most % on_node == 0 : nodes == 1 || on_node == most) out.push_back({nodes, on_node, cpu ? most / on_node : 1});
  return out;
}

// The fastest plan of all, written as plainly as possible: no pruning, every cut of the blocks.
plan::Plan by_enumeration(const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  const cluster::ResourceGroup& group = cluster.groups[0];
  const int blocks = job.model.block_count();
  const model::ParallelChoice& given = job.parallel;
  const profile::Profile none;
  cost::CostModel cost_model(job.model, job.train, cluster, none);
  std::optional<plan::Plan> best;
  for (const Layout& layout : layouts(group)) {
    const int world = layout.nodes * layout.on_node;
    for (int pp = 1; pp <= std::min(world, blocks); ++pp)
      for (int tp = 1; tp * pp <= world; ++tp) {
        const int dp = world / pp / tp;
        if (world % (pp * tp) != 0 || plan::tensor_fault(job.model, tp)) continue;
        if ((given.pp > 0 && pp != given.pp) || (given.tp > 0 && tp != given.tp) || (given.dp > 0 && dp != given.dp)) continue;
        for (int micro_batches = 1; micro_batches * dp <= job.train.global_batch; ++micro_batches) {
          if (job.train.global_batch % (dp * micro_batches) != 0) continue;
          for (plan::Schedule schedule : {plan::Schedule::one_f_one_b, plan::Schedule::gpipe, plan::Schedule::zb_h1}) {
            if (micro_batches < cost::least_micro_batches(schedule, pp)) continue;
            for (int zero = 0; zero <= (dp > 1 ? 3 : 0); ++zero)
              for (model::Recompute recompute : {model::Recompute::none, model::Recompute::full})
                for_all_cuts(blocks, pp, [&](const std::vector<int>& cuts) {
                  plan::Plan plan;
                  plan.precision = job.train.precision;
                  plan.global_batch = job.train.global_batch;
                  plan.micro_batches = micro_batches;
                  plan.schedule = schedule;
                  for (int rank = 0; rank < world; ++rank)
                    plan.ranks.push_back({0, rank / layout.on_node, rank % layout.on_node, layout.threads});
                  for (int s = 0; s < pp; ++s) {
                    plan::Stage stage;
                    for (int i = 0; i < dp * tp; ++i) stage.ranks.push_back(s * dp * tp + i);
                    stage.runs.push_back({cuts[s], cuts[s + 1], {dp, tp, zero, recompute}});
                    plan.stages.push_back(stage);
                  }
                  plan.predicted = sim::predict(plan, cost_model);
                  if (fits(plan, cluster) && (!best || plan.predicted->step < best->predicted->step)) best = plan;
                });
          }
        }
      }
  }
  return best.value();
}

// Of CPU workers on one or several hosts, and of accelerators in 32 bits.
RC_GTEST_PROP(Search, EqualsEnumerationOnSmallInstances, ()) {
  const int cores = *rc::gen::element(1, 2, 4);
  const int nodes = cores < 4 ? *rc::gen::inRange(1, 4) : 1;
  const auto cluster = *rc::gen::arbitrary<bool>() ? plan::cpu_cluster(cores, nodes) : plan::gpu_cluster(cores < 4 ? nodes : 1, cores);
  const plan::JobShape shape{
      .layers = *rc::gen::inRange(1, 6),
      .hidden = 64 * *rc::gen::inRange(1, 8),
      .kv_heads = *rc::gen::element(1, 2, 4),
      .seq = 32 << *rc::gen::inRange(0, 6),
      .vocab = 256 << *rc::gen::inRange(0, 6),
      .tied = *rc::gen::arbitrary<bool>(),
      .global_batch = *rc::gen::element(1, 2, 4, 6),
      .parallel = cores > 1 ? *rc::gen::element<std::string>("auto", "{pp: 2}", "{pp: 2, tp: 1}", "{tp: 2}", "{tp: 1}") : "auto"};
  const auto job = plan::job_of(shape);
  const bool divides = job.parallel.tp == 0 || !plan::tensor_fault(job.model, job.parallel.tp);
  RC_PRE(divides);
  const plan::Plan enumerated = by_enumeration(job, cluster);
  const SearchResult result = search(job, cluster, {});
  RC_CLASSIFY(result.best.world_size() > 1, "several workers");
  RC_CLASSIFY(result.best.stages.size() > 1, "a pipeline");
  RC_CLASSIFY(result.best.stages.front().runs.front().strategy.tp > 1, "tensor parallel");
  RC_CLASSIFY(result.best.ranks.back().node > 0, "several nodes");
  RC_LOG() << plan::yaml_of(shape) << cluster::to_yaml(cluster) << to_json(result.best) << to_json(enumerated);
  RC_ASSERT(std::abs(result.best.predicted->step / enumerated.predicted->step - 1) < 1e-4);
  check(result.best, job, cluster);
}

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

TEST(Search, SaysHowMuchMemoryIsMissingAndWhatWouldFit) {
  plan::JobShape shape{.layers = 32,
                       .hidden = 4096,
                       .heads = 32,
                       .kv_heads = 8,
                       .ffn = 14336,
                       .seq = 2048,
                       .vocab = 32000,
                       .global_batch = 8,
                       .precision = "bf16"};
  const Error automatic = error_of([&] { search(plan::job_of(shape), plan::gpu_cluster(1, 1, "a100-40"), {}); });
  EXPECT_EQ(automatic.code(), ErrorCode::resource_exhausted);
  EXPECT_THAT(automatic.what(), HasSubstr("no plan fits"));
  EXPECT_THAT(automatic.what(),
              ContainsRegex("needs [0-9]+ GiB of each a100-40, [0-9]+ [GM]iB more than the 38.0 GiB that it has for a plan"));
  EXPECT_THAT(automatic.what(), HasSubstr("what would fit: 2 times the nodes; devices with"));
  // And it does.
  EXPECT_NO_THROW(search(plan::job_of(shape), plan::gpu_cluster(2, 1, "a100-40"), {}));
  // With the optimizer on the host one device of 80 GiB is enough.
  const plan::Plan alone = search(plan::job_of(shape), plan::gpu_cluster(1, 1), {}).best;
  const auto& runs = alone.stages.front().runs;
  EXPECT_TRUE(std::any_of(runs.begin(), runs.end(), [](const plan::StrategyRun& run) { return run.strategy.offload_optimizer; }));
  shape.parallel = "{dp: 2, zero: 0}";
  const Error fixed = error_of([&] { search(plan::job_of(shape), plan::gpu_cluster(2, 1, "a100-40"), {}); });
  EXPECT_THAT(fixed.what(), ContainsRegex("needs [0-9]+ GiB of each a100-40, [0-9]+ [GM]iB more than the 38.0 GiB that it has for a plan"));
  EXPECT_THAT(fixed.what(), HasSubstr("what would fit: parallel with dp 2 alone"));
  EXPECT_THAT(fixed.what(), HasSubstr("its largest parts: gradients "));
}

TEST(Search, CountsTheMemoryOfAllWorkersOfAHostTogether) {
  const plan::JobShape shape{.layers = 4,
                             .hidden = 1024,
                             .heads = 8,
                             .kv_heads = 8,
                             .ffn = 4096,
                             .vocab = 8192,
                             .cluster = "{local: {devices: 4}}",
                             .parallel = "{dp: 4}"};
  const auto job = plan::job_of(shape);
  const plan::Plan plan = search(job, plan::cpu_cluster(4), {}).best;
  Bytes sum;
  for (Bytes bytes : plan.predicted->memory) sum += bytes;
  const std::vector<Bytes> limits = cost::memory_limits(plan, plan::cpu_cluster(4));
  EXPECT_EQ(limits, std::vector<Bytes>(4, Bytes(cost::memory_limit(plan::cpu_cluster(4).groups.front().device).value / 4)));
  const std::int64_t mebibytes = sum.value >> 20;
  EXPECT_NO_THROW(search(job, plan::cpu_cluster(4, 1, mebibytes * 12 / 10), {}));
  EXPECT_THROW(search(job, plan::cpu_cluster(4, 1, plan.predicted->memory[0].value >> 20), {}), Error);
}

TEST(Search, RecomputesOrShardsOnlyWhenMemoryAsksForIt) {
  const plan::JobShape shape{.layers = 16,
                             .hidden = 2048,
                             .heads = 16,
                             .kv_heads = 16,
                             .ffn = 8192,
                             .seq = 2048,
                             .vocab = 32000,
                             .global_batch = 64,
                             .precision = "bf16"};
  const auto roomy = search(plan::job_of(shape), plan::gpu_cluster(1, 1, "a100-80"), {}).best;
  const auto computes_again = [](const plan::Plan& plan) {
    const std::vector<plan::StrategyRun>& runs = plan.stages[0].runs;
    return std::any_of(runs.begin(), runs.end(),
                       [](const plan::StrategyRun& run) { return run.strategy.recompute == model::Recompute::full; });
  };
  EXPECT_FALSE(computes_again(roomy));
  plan::JobShape fixed = shape;
  fixed.parallel = "{micro_batches: 1}";
  const auto cramped = search(plan::job_of(fixed), plan::gpu_cluster(1, 1, "a100-80"), {}).best;
  EXPECT_TRUE(computes_again(cramped));
}

TEST(Search, PrefersFewerWorkersAcrossASlowNetwork) {
  const auto job = plan::job_of({.layers = 2, .global_batch = 4});
  auto cluster = plan::cpu_cluster(1, 4);
  cluster.groups[0].network.bandwidth = BytesPerSecond(1e5);
  EXPECT_EQ(search(job, cluster, {}).best.world_size(), 1);
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

// One host of 8 cores and one of 4.
cluster::ClusterSpec two_hosts(const std::string& between) {
  return cluster::read_cluster(
      ConfigNode::parse("name: two hosts\nbetween: " + between +
                            "\ngroups:\n"
                            "  - {name: new, device: 'cpu:zen4', cores: 8, memory: 64 GiB, inside: shm, network: tcp-10g}\n"
                            "  - {name: old, device: 'cpu:zen4', cores: 4, memory: 64 GiB, inside: shm, network: tcp-10g}\n",
                        "cluster.yaml"));
}

TEST(Search, UnequalHostsShareTheBatchByTheirSpeed) {
  const auto job = plan::job_of({.hidden = 512, .heads = 8, .kv_heads = 8, .ffn = 2048, .seq = 512, .global_batch = 48});
  const auto cluster = two_hosts("tcp-100g");
  const SearchResult result = search(job, cluster, {});
  check(result.best, job, cluster);
  ASSERT_FALSE(result.best.stages.front().shares.empty()) << to_json(result.best);
  const std::vector<plan::Share>& shares = result.best.stages.front().shares;
  EXPECT_EQ(shares[0].samples, 2 * shares[1].samples);
  EXPECT_THAT(explain(result, job.model, cluster),
              AllOf(HasSubstr("on all kinds"),
                    HasSubstr(text("of each ", result.best.samples(), " samples: ", shares[0].samples, " on 1 of new, "))));
  // Nothing on one host alone, and no even shares, are as fast.
  for (const Candidate& candidate : result.runners_up) EXPECT_GE(candidate.plan.predicted->step, result.best.predicted->step);
  plan::Plan even = result.best;
  even.stages.front().shares.clear();
  if (even.global_batch % (even.micro_batches * even.world_size()) == 0) {
    const profile::Profile none;
    cost::CostModel cost_model(job.model, job.train, cluster, none);
    EXPECT_GT(sim::predict(even, cost_model).step, result.best.predicted->step);
  }
}

TEST(Search, ThreeKindsOfHostsShareTheBatchInWholeReplicas) {
  const auto job = plan::job_of(
      {.hidden = 512, .heads = 8, .kv_heads = 8, .ffn = 2048, .seq = 512, .global_batch = 48, .parallel = "{dp: 14, threads: 1}"});
  const auto cluster = cluster::read_cluster(
      ConfigNode::parse("name: three\nbetween: tcp-100g\ngroups:\n"
                        "  - {name: a, device: 'cpu:zen4', cores: 8, memory: 64 GiB, inside: shm, network: tcp-10g}\n"
                        "  - {name: b, device: 'cpu:zen4', cores: 4, memory: 64 GiB, inside: shm, network: tcp-10g}\n"
                        "  - {name: c, device: 'cpu:zen4', cores: 2, memory: 64 GiB, inside: shm, network: tcp-10g}\n",
                        "cluster.yaml"));
  const plan::Plan best = search(job, cluster, {}).best;
  check(best, job, cluster);
  EXPECT_THAT(best.stages.front().shares, ::testing::ElementsAre(plan::Share{8, 24}, plan::Share{4, 16}, plan::Share{2, 8}));
}

TEST(Search, UnequalHostsMakeOnePipelineWhereTheLinkIsSlow) {
  const auto job = plan::job_of({.layers = 12, .hidden = 1024, .heads = 8, .kv_heads = 8, .ffn = 4096, .seq = 128, .global_batch = 48});
  const SearchResult result = search(job, two_hosts("tcp-1g"), {});
  ASSERT_EQ(result.best.stages.size() % 2, 0u) << to_json(result.best);
  EXPECT_NE(result.best.ranks.front().group, result.best.ranks.back().group) << to_json(result.best);
  EXPECT_THAT(result.best_family, HasSubstr("on all kinds"));
  // The faster host takes more blocks.
  int on_new = 0;
  for (const plan::Stage& stage : result.best.stages)
    if (result.best.ranks[static_cast<std::size_t>(stage.ranks.front())].group == 0) on_new += stage.last_block() - stage.first_block();
  EXPECT_GT(on_new, job.model.block_count() / 2);
}

// Only as many blocks are computed again as the memory asks for.
TEST(Search, RecomputesSomeBlocksOfAWorker) {
  const plan::JobShape shape{.layers = 12,
                             .hidden = 512,
                             .heads = 8,
                             .kv_heads = 8,
                             .ffn = 2048,
                             .seq = 1024,
                             .global_batch = 8,
                             .cluster = "{local: {devices: 1}}",
                             .parallel = "{micro_batches: 1}"};
  const auto job = plan::job_of(shape);
  const auto held = [&](const std::string& recompute) {
    plan::JobShape given = shape;
    given.parallel = "{micro_batches: 1, recompute: " + recompute + "}";
    return search(plan::job_of(given), plan::cpu_cluster(1), {}).best.predicted->memory.front().value >> 20;
  };
  const std::int64_t middle = (held("none") + held("full")) / 2 * 10 / 9;
  const plan::Plan best = search(job, plan::cpu_cluster(1, 1, middle), {}).best;
  int again = 0;
  for (const plan::StrategyRun& run : best.stages.front().runs)
    if (run.strategy.recompute == model::Recompute::full) again += run.last - run.first;
  EXPECT_GT(again, 0);
  EXPECT_LT(again, shape.layers);
  check(best, job, plan::cpu_cluster(1, 1, middle));
}

TEST(Search, LeavesOutHostsThatDoNotDivide) {
  // Seven hosts cannot share a batch of six; six can.
  const auto job = plan::job_of(
      {.layers = 4, .hidden = 512, .heads = 8, .kv_heads = 8, .ffn = 2048, .seq = 512, .global_batch = 6, .parallel = "{tp: 1, pp: 1}"});
  EXPECT_EQ(search(job, plan::cpu_cluster(1, 7), {}).best.world_size(), 6);
}

TEST(Search, UsesOnlyTheVendorsItIsGiven) {
  auto cluster = plan::cpu_cluster(2);
  cluster.groups.push_back(plan::gpu_cluster(1, 2).groups[0]);
  cluster.between = cluster::known_link("pcie4");
  const auto job = plan::job_of({.hidden = 512});
  EXPECT_EQ(search(job, cluster, {}).best.ranks[0].group, 1);
  EXPECT_EQ(search(job, cluster, {}, {.top = 5, .vendors = {"cpu"}}).best.ranks[0].group, 0);
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
