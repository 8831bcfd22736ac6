// Sparse tables: what is moved and stepped are the rows that a batch looks up, however large the tables are.
#include <gtest/gtest.h>

#include "cost/cost.hpp"
#include "cost/cost_model.hpp"
#include "cost/lower_bound.hpp"
#include "plan/plan_helper.hpp"
#include "search/search.hpp"

namespace tessera::cost {
namespace {

model::JobSpec dlrm(std::int64_t rows, int batch) {
  return model::read_job(ConfigNode::parse(text("name: t\nmodel: {arch: dlrm, dense: 16, dim: 128, tables: [", rows, ", ", rows,
                                                ", 1000], bottom: [512, 128], top: [1024, 1]}\ndata: {source: synthetic}\n",
                                                "train: {global_batch: ", batch, ", precision: bf16}\n"),
                                           "train.yaml"));
}

plan::Prediction predicted(const model::JobSpec& job, int zero) {
  const cluster::ClusterSpec cluster = plan::gpu_cluster(1, 8);
  plan::Plan plan;
  plan.precision = job.train.precision;
  plan.global_batch = job.train.global_batch;
  for (int rank = 0; rank < 8; ++rank) plan.ranks.push_back({0, 0, rank});
  plan.stages.push_back({{0, 1, 2, 3, 4, 5, 6, 7}, {{0, job.model.block_count(), {8, 1, zero}}}});
  CostModel cost_model(job.model, cluster, plan.precision);
  plan::Prediction out = predict(plan, cost_model);
  for (const auto& [resource, least] : least_times(plan, job.model, cluster)) EXPECT_GE(out.step, least) << resource;
  return out;
}

TEST(SparseTables, TakeTimeByTheRowsThatAreLookedUpAndMemoryByAll) {
  for (const int zero : {0, 3}) {
    const plan::Prediction small = predicted(dlrm(1'000'000, 65536), zero);
    const plan::Prediction large = predicted(dlrm(8'000'000, 65536), zero);
    EXPECT_NEAR(small.step.value, large.step.value, 1e-6 * small.step.value) << zero;
    // 32 bits a value and a moment a row, on every rank or an eighth of them.
    const double more = 2 * 7e6 * (128 * 4 + 4) / (zero == 3 ? 8 : 1);
    EXPECT_NEAR(static_cast<double>((large.memory.front() - small.memory.front()).value), more, 1e-3 * more) << zero;
  }
}

TEST(SparseTables, AreCheaperInPartsThanAsReplicas) {
  const model::JobSpec job = dlrm(1'000'000, 65536);
  EXPECT_LT(predicted(job, 3).step, predicted(job, 0).step);
}

// 26 billion parameters, of which a step of 65,536 samples touches 1.7 million rows.
TEST(SparseTables, OfTheBenchmarksDlrmTrainOnEightDevices) {
  const model::JobSpec job = model::read_job(ConfigNode::parse(
      "name: t\nmodel: {preset: dlrm-mlperf}\ndata: {source: synthetic}\ntrain: {global_batch: 65536, precision: bf16}\n", "train.yaml"));
  const plan::Prediction chosen = *search::search(job, plan::gpu_cluster(1, 8), {}, {.top = 0, .vendors = {}}).best.predicted;
  EXPECT_LT(chosen.step.value, 0.05);
}

}  // namespace
}  // namespace tessera::cost
