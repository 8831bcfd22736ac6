// Which tensor-parallel degrees cut a model, and what they pad.
#include "plan/tensor_cut.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/expect_error.hpp"
#include "plan/plan_helper.hpp"

namespace tessera::plan {
namespace {

using tessera::testing::error_of;
using ::testing::HasSubstr;

// On one host, or on accelerators.
Plan plan_for(const model::JobSpec& job, const cluster::ClusterSpec& cluster, int tp) {
  Plan plan;
  plan.model_fingerprint = job.model.fingerprint();
  plan.cluster_fingerprint = cluster.fingerprint();
  plan.precision = job.train.precision;
  plan.global_batch = job.train.global_batch;
  plan.stages.push_back({{}, {{0, job.model.block_count(), {.tp = tp}}}});
  for (int rank = 0; rank < tp; ++rank) {
    plan.ranks.push_back({0, 0, rank});
    plan.stages.front().ranks.push_back(rank);
  }
  return plan;
}

TEST(TensorCut, PadsTheVocabularyAndTheWidthOnWorkersAndAccelerators) {
  for (const char* precision : {"fp32", "bf16"}) {
    const auto job = job_of({.hidden = 48, .heads = 6, .kv_heads = 6, .ffn = 97, .vocab = 259, .precision = precision});
    const auto cluster = std::string(precision) == "fp32" ? cpu_cluster(8) : gpu_cluster(1, 8);
    for (const int tp : {2, 3, 6}) EXPECT_NO_THROW(check(plan_for(job, cluster, tp), job, cluster)) << precision << " tp " << tp;
    const auto lines = paddings(plan_for(job, cluster, 3), job.model);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0].what(), "vocab 259 is padded to 261 for tp 3");
    EXPECT_EQ(lines[1].what(), "ffn 97 is padded to 99 for tp 3");
    EXPECT_TRUE(paddings(plan_for(job, cluster, 1), job.model).empty());
  }
}

TEST(TensorCut, NeverPadsHeads) {
  const auto job = job_of({.heads = 4, .kv_heads = 2});
  const auto cluster = cpu_cluster(8);
  const Error error = error_of([&] { check(plan_for(job, cluster, 3), job, cluster); });
  EXPECT_THAT(error.what(), HasSubstr("tp 3 does not divide heads 4"));
  EXPECT_THAT(error.expected(), HasSubstr("a degree that divides heads and kv_heads, which are not padded"));
  EXPECT_THAT(error.what(), HasSubstr("nearest: 2"));
  EXPECT_THAT(error_of([&] { check(plan_for(job, cluster, 4), job, cluster); }).what(), HasSubstr("tp 4 does not divide kv_heads 2"));
}

// Of four rows, three ranks would have two, two and none.
TEST(TensorCut, LeavesNoRankPaddingAlone) {
  const auto job = job_of({.hidden = 48, .heads = 12, .kv_heads = 12, .ffn = 9, .vocab = 256});
  const auto cluster = cpu_cluster(12);
  EXPECT_NO_THROW(check(plan_for(job, cluster, 3), job, cluster));
  const Error error = error_of([&] { check(plan_for(job, cluster, 4), job, cluster); });
  EXPECT_THAT(error.what(), HasSubstr("tp 4 leaves a rank nothing of ffn 9"));
  EXPECT_THAT(error.expected(), HasSubstr("a degree that leaves each rank a part of ffn"));
  EXPECT_THAT(error.what(), HasSubstr("nearest: 3"));
  for (int degree = 1; degree <= 12; ++degree) EXPECT_EQ(tensor_fault(job.model, degree).has_value(), degree > 3) << degree;
}

TEST(TensorCut, PadsEachKindOfLayerByItsOwnWidth) {
  const auto job = model::read_job(ConfigNode::parse(
      "name: test\nmodel: {arch: deepseek, hidden: 48, layers: 4, heads: 6, ffn: 100, seq: 32, vocab: 258, q_lora: 24, kv_lora: 16, "
      "nope_dim: 8, rope_dim: 8, v_dim: 8, experts: 4, experts_per_token: 2, expert_ffn: 31, shared_ffn: 33, dense_layers: 2}\n"
      "data: {source: synthetic}\ntrain: {global_batch: 8, precision: bf16}\n",
      "train.yaml"));
  const auto lines = paddings(plan_for(job, gpu_cluster(1, 8), 3), job.model);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].what(), "ffn 100 is padded to 102 for tp 3");
  EXPECT_EQ(lines[1].what(), "expert_ffn 31 is padded to 33 for tp 3");
}

// Of a width of 4, three ranks would have two, two and none.
TEST(TensorCut, LeavesTheWidthOfWholeExpertsAlone) {
  const auto job = model::read_job(ConfigNode::parse(
      "name: test\nmodel: {arch: deepseek, hidden: 48, layers: 4, heads: 6, ffn: 99, seq: 32, vocab: 258, q_lora: 24, kv_lora: 16, "
      "nope_dim: 8, rope_dim: 8, v_dim: 8, experts: 4, experts_per_token: 2, expert_ffn: 4, shared_ffn: 33, dense_layers: 2}\n"
      "data: {source: synthetic}\ntrain: {global_batch: 8, precision: bf16}\n",
      "train.yaml"));
  const auto cluster = gpu_cluster(1, 8);
  Plan plan = plan_for(job, cluster, 3);
  EXPECT_THAT(error_of([&] { check(plan, job, cluster); }).what(), HasSubstr("tp 3 leaves a rank nothing of expert_ffn 4"));
  plan.stages.front().runs.front().strategy.whole_experts = true;
  EXPECT_NO_THROW(check(plan, job, cluster));
  EXPECT_TRUE(paddings(plan, job.model).empty());
}

}  // namespace
}  // namespace tessera::plan
