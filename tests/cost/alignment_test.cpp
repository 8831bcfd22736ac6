// What extents cost that fill no whole loads of a matrix unit.
#include <gtest/gtest.h>

#include "base/config.hpp"
#include "cost/cost_model.hpp"

namespace tessera::cost {
namespace {

double gpt2_step(std::int64_t vocab) {
  const model::ModelSpec model = model::read_model(ConfigNode::parse(text("{preset: gpt2, vocab: ", vocab, "}"), "model.yaml"));
  const cluster::ClusterSpec cluster = cluster::read_cluster(ConfigNode::parse(
      "name: one\ngroups:\n  - {name: gpu, device: a100-40, nodes: 1, devices_per_node: 1, inside: nvlink3, network: rdma-100g}\n",
      "cluster.yaml"));
  // Five micro-batches a step, as nanoGPT has on each of eight.
  plan::Plan plan;
  plan.precision = model::Precision::bf16;
  plan.global_batch = 60;
  plan.micro_batches = 5;
  plan.ranks = {{0, 0, 0}};
  plan.stages = {{.ranks = {0}, .runs = {{0, model.block_count(), {}}}}};
  CostModel cost_model(model, cluster, plan.precision);
  return step_of(plan, cost_model).value;
}

// nanoGPT's step was 25 % faster with the nearest multiple of 64 (Karpathy 2023).
TEST(Alignment, AnOddVocabularySlowsAStepOfGpt2ByAQuarter) {
  const double slower = gpt2_step(50257) / gpt2_step(50304);
  EXPECT_GT(slower, 1.15);
  EXPECT_LT(slower, 1.35);
}

}  // namespace
}  // namespace tessera::cost
