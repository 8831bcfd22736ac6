// Plans with stages of any width and blocks of any strategy: what passes and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/expect_error.hpp"
#include "model/forms.hpp"
#include "plan/plan_helper.hpp"
#include "plan/schedule/schedule.hpp"

namespace tessera::plan {
namespace {

using tessera::testing::error_of;
using ::testing::HasSubstr;

// Three stages of 4, 2 and 8 ranks.
class UnequalPlan : public ::testing::Test {
 protected:
  UnequalPlan() {
    plan.model_fingerprint = job.model.fingerprint();
    plan.cluster_fingerprint = cluster.fingerprint();
    plan.precision = model::Precision::bf16;
    plan.global_batch = 16;
    plan.micro_batches = 2;
    for (int rank = 0; rank < 14; ++rank) plan.ranks.push_back({0, rank / 8, rank % 8});
    plan.stages = {{{0, 1, 2, 3}, {{0, 3, {.dp = 4}}}},
                   {{4, 5}, {{3, 6, {.dp = 1, .tp = 2}}}},
                   {{6, 7, 8, 9, 10, 11, 12, 13},
                    {{6, 8, {.dp = 2, .tp = 2, .zero = 3, .sequence_parallel = true, .cp = 2}}, {8, 10, {.dp = 8, .zero = 1}}}}};
  }

  Strategy& strategy(int stage, int run = 0) { return plan.stages[stage].runs[run].strategy; }
  Error refusal() {
    return error_of([&] { check(plan, job, cluster); });
  }
  // `others`: further groups of the cluster.
  void stand_on_two_kinds(const std::string& others) {
    cluster = cluster::read_cluster(
        ConfigNode::parse("name: two\nbetween: rdma-100g\ngroups:\n"
                          "  - {name: new, device: h100-sxm, nodes: 1, devices_per_node: 5, inside: nvlink4, network: rdma-100g}\n"
                          "  - {name: old, device: a100-80, nodes: 2, devices_per_node: 8, inside: nvlink3, network: rdma-100g}\n" +
                              others,
                          "cluster.yaml"));
    plan.cluster_fingerprint = cluster.fingerprint();
    for (int rank = 0; rank < 14; ++rank)
      plan.ranks[rank] = rank < 5 ? RankPlace{0, 0, rank} : RankPlace{1, (rank - 5) / 8, (rank - 5) % 8};
  }
  void made_for(const model::JobSpec& other) {
    job = other;
    plan.model_fingerprint = job.model.fingerprint();
  }

  model::JobSpec job = job_of({.layers = 8, .heads = 4, .kv_heads = 2, .seq = 32, .global_batch = 16, .precision = "bf16"});
  cluster::ClusterSpec cluster = gpu_cluster(2, 8);
  Plan plan;
};

TEST_F(UnequalPlan, AReplicaMustStandOnOneKindOfDevice) {
  stand_on_two_kinds("");
  EXPECT_THAT(refusal().what(), HasSubstr("ranks 4 and 5 of one replica stand on different groups"));
  // Replicas of one rank each may.
  strategy(1).tp = 1;
  strategy(1).dp = 2;
  EXPECT_NO_THROW(check(plan, job, cluster));
}

TEST_F(UnequalPlan, AReplicaMustStandOnOneKindOfAcceleratorBesideCpusToo) {
  stand_on_two_kinds("  - {name: hosts, device: 'cpu:zen4', cores: 8, memory: 64 GiB, inside: shm, network: tcp-10g}\n");
  EXPECT_THAT(refusal().what(), HasSubstr("ranks 4 and 5 of one replica stand on different groups"));
}

TEST_F(UnequalPlan, SharesOfTheBatchMustBeWholeReplicasOfAllRanksAndSamples) {
  plan.stages[0].shares = {{1, 5}, {3, 3}};
  EXPECT_NO_THROW(check(plan, job, cluster));
  plan.stages[0].shares = {{1, 5}, {2, 3}};
  EXPECT_THAT(refusal().what(), HasSubstr("the shares of stage 0 are of 3 ranks, it has 4"));
  plan.stages[0].shares = {{1, 5}, {3, 6}};
  EXPECT_THAT(refusal().what(), HasSubstr("the shares of stage 0 are 11 samples"));
  EXPECT_THAT(refusal().expected(), HasSubstr("8 samples in all shares"));
  plan.stages[0].shares = {{1, 4}, {3, 4}};
  EXPECT_THAT(refusal().what(), HasSubstr("3 replicas do not divide their share of 4 samples"));
  strategy(0).tp = strategy(0).cp = 1 << 16;  // too many for an integer of 32 bits
  EXPECT_NE(refusal().code(), ErrorCode::internal);
  strategy(0).tp = strategy(0).cp = 1;
  plan.stages[0].shares = {};
  plan.stages[2].shares = {{3, 4}, {5, 4}};
  EXPECT_THAT(refusal().what(), HasSubstr("a share of 3 ranks does not hold whole replicas of cp 2 x tp 2"));
}

TEST_F(UnequalPlan, IsAccepted) { EXPECT_NO_THROW(check(plan, job, cluster)); }

TEST_F(UnequalPlan, IsReadBackAsItIsWritten) {
  strategy(2).recompute = model::Recompute::selective;
  strategy(2).context = model::ContextKind::ulysses;
  strategy(2).ep = 2;
  strategy(2).offload_optimizer = true;
  const Plan again = read_plan(ConfigNode::parse(to_json(plan), "plan.json"));
  for (int s = 0; s < 3; ++s)
    for (std::size_t r = 0; r < plan.stages[s].runs.size(); ++r)
      EXPECT_EQ(again.stages[s].runs[r].strategy, plan.stages[s].runs[r].strategy);
}

TEST_F(UnequalPlan, IsRefusedWhenDegreesDoNotMakeTheRanksOfAStage) {
  strategy(2, 1).dp = 4;
  EXPECT_THAT(refusal().what(), HasSubstr("stage 2 has 8 ranks for dp 4 x tp 1 of blocks [8, 10)"));
  EXPECT_THAT(refusal().what(), HasSubstr("4 ranks, or degrees that make 8"));
  EXPECT_THAT(refusal().what(), HasSubstr("nearest: dp 8"));
  strategy(2, 1) = {.dp = 1, .tp = 2, .cp = 2};
  EXPECT_THAT(refusal().what(), HasSubstr("stage 2 has 8 ranks for dp 1 x cp 2 x tp 2"));
  EXPECT_THAT(refusal().what(), HasSubstr("nearest: dp 2"));
}

TEST_F(UnequalPlan, IsRefusedWhenADegreeDoesNotDivideWhatItsBlocksHave) {
  // Layers have two key-value heads; the embedding has none.
  strategy(0) = {.dp = 1, .tp = 4};
  EXPECT_THAT(refusal().what(), HasSubstr("tp 4 does not divide kv_heads 2"));
  EXPECT_THAT(refusal().what(), HasSubstr("nearest: 2"));
  plan.stages[0].runs = {{0, 1, {.dp = 1, .tp = 4}}, {1, 3, {.dp = 2, .tp = 2}}};
  EXPECT_NO_THROW(check(plan, job, cluster));
  strategy(2, 1) = {.dp = 16};
  plan.micro_batches = 1;
  EXPECT_THAT(refusal().what(), HasSubstr("stage 2 has 8 ranks"));
  plan.micro_batches = 4;
  EXPECT_THAT(refusal().what(), HasSubstr("dp 16 x micro_batches 4 does not divide global_batch 16"));
}

TEST_F(UnequalPlan, IsRefusedWhenAContextDegreeDoesNotCutTheSequence) {
  job = job_of({.layers = 8, .heads = 4, .kv_heads = 2, .seq = 36, .global_batch = 16, .precision = "bf16"});
  plan.model_fingerprint = job.model.fingerprint();
  strategy(2) = {.dp = 1, .cp = 8};
  EXPECT_THAT(refusal().what(), HasSubstr("cp 8: twice that does not divide seq 36"));
  EXPECT_THAT(refusal().what(), HasSubstr("nearest: 9"));
}

TEST_F(UnequalPlan, IsRefusedWhenExpertsOrZeroOrSequencesDoNotFit) {
  strategy(2).ep = 2;
  EXPECT_THAT(refusal().what(), HasSubstr("ep 2 for a model without experts"));
  strategy(2).ep = 1;
  strategy(0).sequence_parallel = true;
  EXPECT_THAT(refusal().what(), HasSubstr("sequence_parallel with tp 1"));
  strategy(0).sequence_parallel = false;
  strategy(0).zero = 4;
  EXPECT_THAT(refusal().what(), HasSubstr("zero 4"));
  EXPECT_THAT(refusal().what(), HasSubstr("nearest: 3"));
  strategy(0).zero = 0;
  strategy(0).cp = 0;
  EXPECT_THAT(refusal().what(), HasSubstr("degrees of at least 1"));
}

TEST(Check, PlacesSamplesWhereTokensCrossFromHostToHost) {
  const auto job = model::read_job(ConfigNode::parse(
      "name: test\nmodel: {arch: mixtral, hidden: 64, layers: 2, heads: 4, kv_heads: 4, ffn: 128, seq: 32, vocab: 256, experts: 4, "
      "experts_per_token: 2}\ndata: {source: synthetic}\ntrain: {global_batch: 8, placement: {kind: samples}}\n",
      "train.yaml"));
  const auto cluster = cpu_cluster(2, 2);
  Plan plan;
  plan.model_fingerprint = job.model.fingerprint();
  plan.cluster_fingerprint = cluster.fingerprint();
  plan.precision = job.train.precision;
  plan.global_batch = 8;
  for (int rank = 0; rank < 4; ++rank) plan.ranks.push_back({.node = rank / 2, .device = rank % 2});
  plan.stages.push_back({{0, 1, 2, 3}, {{0, 4, {.dp = 4, .ep = 4}}}});
  EXPECT_NO_THROW(check(plan, job, cluster));
  Strategy& strategy = plan.stages[0].runs[0].strategy;
  strategy.ep = 2;
  const auto refused = [&] { return error_of([&] { check(plan, job, cluster); }); };
  EXPECT_THAT(refused().what(), HasSubstr("train.yaml:4:37: the plan cannot run: train.placement, and no tokens cross from host to host"));
  plan.stages[0].ranks = {0, 2, 1, 3};
  EXPECT_NO_THROW(check(plan, job, cluster));
  strategy = {.dp = 2, .tp = 2, .ep = 2};
  EXPECT_THAT(refused().what(), HasSubstr("train.placement with tp 2"));
  plan.stages = {{{0, 1}, {{0, 2, {.dp = 2, .ep = 2}}}}, {{2, 3}, {{2, 4, {.dp = 2, .ep = 2}}}}};
  EXPECT_THAT(refused().what(), HasSubstr("train.placement over 2 pipeline stages"));
}

TEST(Check, SpreadsExpertsOverRanksThatDivideThem) {
  const auto job = model::read_job(ConfigNode::parse(
      "name: test\nmodel: {arch: mixtral, hidden: 64, layers: 2, heads: 4, kv_heads: 4, ffn: 128, seq: 32, vocab: 256, experts: 6, "
      "experts_per_token: 2}\ndata: {source: synthetic}\ntrain: {global_batch: 8, precision: bf16}\n",
      "train.yaml"));
  const auto cluster = gpu_cluster(1, 4);
  Plan plan;
  plan.model_fingerprint = job.model.fingerprint();
  plan.cluster_fingerprint = cluster.fingerprint();
  plan.precision = model::Precision::bf16;
  plan.global_batch = 8;
  for (int rank = 0; rank < 4; ++rank) plan.ranks.push_back({0, 0, rank});
  plan.stages = {{{0, 1, 2, 3}, {{0, 4, {.dp = 4, .ep = 2}}}}};
  EXPECT_NO_THROW(check(plan, job, cluster));
  plan.stages[0].runs[0].strategy.ep = 4;
  const Error error = error_of([&] { check(plan, job, cluster); });
  EXPECT_THAT(error.what(), HasSubstr("ep 4 does not divide both the experts and dp x cp 4"));
  EXPECT_THAT(error.what(), HasSubstr("nearest: 2"));
}

TEST_F(UnequalPlan, BlocksThatShareAParameterOnOneRankHaveTheSamePartsOfIt) {
  made_for(job_of({.layers = 8, .heads = 4, .kv_heads = 2, .seq = 32, .tied = true, .global_batch = 16, .precision = "bf16"}));
  plan.ranks.resize(4);
  plan.stages = {{{0, 1, 2, 3}, {{0, 5, {.dp = 4}}, {5, 10, {.dp = 2, .tp = 2}}}}};
  EXPECT_THAT(refusal().what(), HasSubstr("blocks 0 and 9 share a parameter on the same ranks, and have tp 1 and tp 2"));
  EXPECT_THAT(refusal().expected(), HasSubstr("the same tp for both"));
  plan.stages = {{{0, 1, 2, 3}, {{0, 5, {.dp = 4}}, {5, 9, {.dp = 2, .tp = 2}}, {9, 10, {.dp = 2, .cp = 2}}}}};
  EXPECT_NO_THROW(check(plan, job, cluster));
  plan.stages = {{{0, 1}, {{0, 5, {.dp = 2}}}}, {{2, 3}, {{5, 10, {.tp = 2}}}}};
  EXPECT_NO_THROW(check(plan, job, cluster));
}

TEST_F(UnequalPlan, SequencesAreCutIntoEqualPartsAndByUlyssesAmongTheHeads) {
  plan.ranks.resize(8);
  plan.stages = {{{0, 1, 2, 3}, {{0, 5, {.dp = 1, .tp = 2, .cp = 2}}}}, {{4, 5, 6, 7}, {{5, 10, {.dp = 1, .tp = 2, .cp = 2}}}}};
  strategy(0).context = model::ContextKind::ulysses;
  strategy(0).sequence_parallel = strategy(1).sequence_parallel = true;
  EXPECT_NO_THROW(check(plan, job, cluster));
  made_for(job_of({.layers = 8, .heads = 4, .kv_heads = 2, .seq = 36, .global_batch = 16, .precision = "bf16"}));
  EXPECT_NO_THROW(check(plan, job, cluster));
  strategy(0).sequence_parallel = false;
  strategy(1) = {.dp = 2, .tp = 2, .sequence_parallel = true};
  made_for(job_of({.layers = 8, .heads = 4, .kv_heads = 2, .seq = 33, .global_batch = 16, .precision = "bf16"}));
  strategy(0) = strategy(1);
  EXPECT_THAT(refusal().what(), HasSubstr("sequence_parallel with tp 2, which does not divide seq 33"));
  made_for(job_of({.layers = 8, .heads = 2, .kv_heads = 2, .seq = 32, .global_batch = 16, .precision = "bf16"}));
  strategy(1) = strategy(0) = {.dp = 1, .cp = 4};
  EXPECT_NO_THROW(check(plan, job, cluster));
  strategy(0).context = model::ContextKind::ulysses;
  EXPECT_THAT(refusal().what(), HasSubstr("cp 4 with context ulysses, which does not divide the 2 query heads"));
  EXPECT_THAT(refusal().expected(), HasSubstr("context: ring"));
}

TEST_F(UnequalPlan, BlocksOfAPlugInStandWhole) {
  model::JobSpec own = job;
  own.model.plugin = "libown.so";
  for (model::Repeat& repeat : own.model.repeats) repeat.block.kind = "own_" + repeat.block.kind;
  made_for(own);
  plan.ranks.resize(8);
  plan.stages = {{{0, 1, 2, 3}, {{0, 5, {.dp = 4}}}}, {{4, 5, 6, 7}, {{5, 10, {.dp = 4, .recompute = model::Recompute::full}}}}};
  EXPECT_NO_THROW(check(plan, job, cluster));
  strategy(1).recompute = model::Recompute::selective;
  EXPECT_THAT(refusal().what(), HasSubstr("recompute selective, and blocks of arch llama are computed again as a whole"));
  strategy(1) = {.dp = 2, .cp = 2};
  EXPECT_THAT(refusal().what(), HasSubstr("cp 2 cuts sequences, and blocks of arch llama take whole ones"));
  strategy(1) = {.dp = 2, .tp = 2};
  EXPECT_THAT(refusal().what(), HasSubstr("tp 2 cuts blocks of arch llama, which stand whole"));
}

model::JobSpec vision_job(const std::string& section) {
  return model::read_job(ConfigNode::parse(
      text("name: any\nmodel: {", section, "}\ndata: {source: synthetic}\ntrain: {global_batch: 16, precision: bf16}\n"), "train.yaml"));
}

// Other trainers may cut them on accelerators.
TEST_F(UnequalPlan, VisionModelsStandWholeOnWorkers) {
  made_for(vision_job("arch: vit, hidden: 64, layers: 8, heads: 4, image: 28, patch: 4, classes: 10"));
  cluster = cpu_cluster(8);
  plan.cluster_fingerprint = cluster.fingerprint();
  plan.ranks.resize(8);
  plan.stages = {{{0, 1, 2, 3}, {{0, 5, {.dp = 4, .zero = 3}}}}, {{4, 5, 6, 7}, {{5, 10, {.dp = 4, .recompute = model::Recompute::full}}}}};
  EXPECT_NO_THROW(check(plan, job, cluster));
  strategy(1).recompute = model::Recompute::selective;
  EXPECT_THAT(refusal().what(), HasSubstr("recompute selective, and blocks of arch vit are computed again as a whole"));
  strategy(1) = {.dp = 2, .cp = 2};
  EXPECT_THAT(refusal().what(), HasSubstr("cp 2 cuts sequences, and blocks of arch vit take whole ones"));
  strategy(1) = {.dp = 2, .tp = 2, .sequence_parallel = true};
  EXPECT_THAT(refusal().what(), HasSubstr("tp 2 cuts blocks of arch vit, which stand whole"));
  cluster = gpu_cluster(1, 8);
  plan.cluster_fingerprint = cluster.fingerprint();
  EXPECT_NO_THROW(check(plan, job, cluster));
}

TEST_F(UnequalPlan, BatchNormNeedsMoreThanOneValueAChannel) {
  made_for(vision_job("arch: resnet18, image: 32, classes: 10"));
  cluster = cpu_cluster(8);
  plan.cluster_fingerprint = cluster.fingerprint();
  plan.ranks.resize(4);
  plan.micro_batches = 4;
  plan.stages = {{{0, 1}, {{0, 5, {.dp = 2}}}}, {{2, 3}, {{5, 10, {.dp = 2}}}}};
  EXPECT_NO_THROW(check(plan, job, cluster));
  plan.micro_batches = 8;
  EXPECT_THAT(refusal().what(), HasSubstr("micro-batches of 1 sample a rank leave batch norm one value a channel in layer4.{}"));
  EXPECT_THAT(refusal().what(), HasSubstr("at least 2 samples"));
  made_for(vision_job("arch: resnet18, image: 32, classes: 10, batch_norm: synchronized"));
  EXPECT_NO_THROW(check(plan, job, cluster));
  made_for(vision_job("arch: resnet18, image: 64, classes: 10"));
  EXPECT_NO_THROW(check(plan, job, cluster));
}

TEST(HasBlocks, SaysWhichModelsAndPrecisionsTheTrainerComputes) {
  const auto refusal = [](const std::string& section, model::Precision precision = model::Precision::bf16) {
    const auto job = model::read_job(
        ConfigNode::parse(text("name: any\nmodel: {", section, "}\ndata: {source: synthetic}\ntrain: {global_batch: 16}\n"), "train.yaml"));
    return std::string(error_of([&] { model::check_has_blocks(job.model, precision, {}); }).what());
  };
  const std::string gpt = "arch: gpt, hidden: 64, layers: 8, heads: 4, seq: 32, vocab: 256";
  const auto passes = [](const model::JobSpec& job) { model::check_has_blocks(job.model, model::Precision::f32, {}); };
  EXPECT_NO_THROW(passes(job_of({})));
  EXPECT_NO_THROW(passes(model::read_job(
      ConfigNode::parse("name: any\nmodel: {preset: bert-large}\ndata: {source: synthetic}\ntrain: {global_batch: 16}\n", "train.yaml"))));
  EXPECT_THAT(refusal(gpt + ", positions: alibi"), HasSubstr("its GPT has learned or rotary positions, or none"));
  EXPECT_THAT(refusal(gpt + ", attention: unfused"), HasSubstr("the model says attention: unfused"));
  EXPECT_THAT(refusal(gpt, model::Precision::f8), HasSubstr("the trainer cannot run the model: precision fp8"));
  for (const char* section : {"arch: resnet50, image: 64, classes: 1000", "arch: vgg16, norm: true", "arch: vgg11", "preset: vit-b-16"})
    EXPECT_NO_THROW(passes(vision_job(section)));
  EXPECT_THAT(refusal("preset: vit-b-16, attention: unfused"), HasSubstr("the model says attention: unfused"));
  EXPECT_THAT(refusal("preset: bert-large, head: pretraining"), HasSubstr("and not whether one sentence follows another"));
  EXPECT_NO_THROW(passes(vision_job("preset: t5-large")));
  EXPECT_THAT(refusal("preset: t5-large, attention: fused"), HasSubstr("the model says attention: fused"));
  EXPECT_THAT(refusal("preset: t5-large, keeps: autograd"), HasSubstr("the model says keeps: autograd"));
  for (const char* section : {"preset: deepfm-criteo", "preset: dlrm-mlperf", "arch: dcn_v2, dim: 8, tables: 26, hidden: [64]",
                              "arch: din, dim: 8, tables: 3, history: 50, hidden: [64]"})
    EXPECT_NO_THROW(passes(vision_job(section)));
}

}  // namespace
}  // namespace tessera::plan
