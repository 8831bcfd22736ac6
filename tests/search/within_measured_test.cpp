#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cost/extrapolation.hpp"
#include "plan/plan_helper.hpp"
#include "search/rank.hpp"

namespace tessera::search {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The usual stack of A100 was measured under sharded data parallelism alone.
class WithinMeasured : public ::testing::Test {
 protected:
  Candidate planned(const std::string& parallel) const {
    const model::JobSpec job = plan::preset_job("llama-2-7b", 64, parallel);
    const SearchResult result = search(job, cluster_, {}, {.top = 0, .vendors = {}, .effort = 300'000});
    return {result.best, parallel};
  }
  const model::ModelSpec model_ = plan::preset_job("llama-2-7b", 64).model;
  const cluster::ClusterSpec cluster_ = plan::gpu_cluster(1, 8);
  const Candidate tensor_ = planned("{tp: 2, pp: 1, micro_batches: 8}");
  const Candidate wider_ = planned("{tp: 4, pp: 1, micro_batches: 8}");
  const Candidate sharded_ = planned("{dp: 8, tp: 1, cp: 1, pp: 1, zero: 3, recompute: full, micro_batches: 4}");
};

TEST_F(WithinMeasured, TheBestSuchPlanStandsAmongTheRunnersUpAndSaysSo) {
  SearchResult result;
  result.best = tensor_.plan;
  result.runners_up = {wider_};
  result.close = {wider_, sharded_};
  keep_within_measured(result, model_, cluster_);
  ASSERT_EQ(result.runners_up.size(), 2u);
  EXPECT_EQ(result.close.size(), 1u);
  EXPECT_LE(result.runners_up[0].plan.predicted->step, result.runners_up[1].plan.predicted->step);
  const std::string text = explain(result, model_, cluster_);
  EXPECT_THAT(text, HasSubstr("tensor-parallel exchange over 2 ranks (never measured under this stack)"));
  EXPECT_THAT(text, HasSubstr("the fastest known plan within what was measured is a runner-up: " + sharded_.family));
  EXPECT_THAT(text, HasSubstr("; within what was measured\n"));
  keep_within_measured(result, model_, cluster_);
  EXPECT_EQ(result.runners_up.size(), 2u);
}

TEST_F(WithinMeasured, NothingMovesWhereTheBestPlanIsWithin) {
  SearchResult result;
  result.best = sharded_.plan;
  result.runners_up = {tensor_};
  result.close = {sharded_};
  keep_within_measured(result, model_, cluster_);
  EXPECT_EQ(result.runners_up.size(), 1u);
  EXPECT_THAT(explain(result, model_, cluster_), HasSubstr("all that this plan chooses lies within what was measured"));
}

TEST_F(WithinMeasured, SaysWhereNoKnownPlanStaysWithin) {
  SearchResult result;
  result.best = tensor_.plan;
  result.runners_up = {wider_};
  keep_within_measured(result, model_, cluster_);
  EXPECT_EQ(result.runners_up.size(), 1u);
  EXPECT_THAT(explain(result, model_, cluster_), HasSubstr("of the plans that the search kept, none stays within what was measured"));
}

// Nobody has published a step of this device, nor of so many devices.
TEST(Extrapolated, ThePublishedPlanOfPanguUltraSaysWhatNobodyMeasured) {
  const auto cluster = cluster::read_cluster(ConfigNode::parse(
      "name: ascend\ngroups:\n  - {name: ascend, device: ascend910b, nodes: 1024, devices_per_node: 8, inside: hccs, network: rdma-200g, "
      "adapters: 8}\n",
      "cluster.yaml"));
  const model::JobSpec job =
      plan::preset_job("pangu-ultra", 2048, "{dp: 128, tp: 8, pp: 8, schedule: interleaved, chunks: 6, micro_batches: 16, zero: 1}");
  const SearchResult result = search(job, cluster, {}, {.top = 0, .vendors = {}});
  const std::string text = explain(result, job.model, cluster);
  EXPECT_THAT(text, HasSubstr("all times on ascend910b (no step of it was measured"));
  EXPECT_THAT(text, HasSubstr("8192 devices (measured up to 3072 elsewhere, 2.7 x)"));
  // Degrees like these were measured on others.
  EXPECT_THAT(text, Not(HasSubstr("tensor-parallel exchange over")));
  EXPECT_THAT(text, Not(HasSubstr("interleaved over")));
  EXPECT_THAT(text, Not(HasSubstr("ZeRO-1 over")));
}

}  // namespace
}  // namespace tessera::search
