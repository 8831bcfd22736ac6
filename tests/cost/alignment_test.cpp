// What extents cost that fill no whole loads of a matrix unit.
#include <gtest/gtest.h>

#include "cost/uniform.hpp"

namespace tessera::cost {
namespace {

double gpt2_step(std::int64_t vocab) {
  const model::ModelSpec model = model::read_model(ConfigNode::parse(text("{preset: gpt2, vocab: ", vocab, "}"), "model.yaml"));
  const cluster::ClusterSpec cluster = cluster::read_cluster(ConfigNode::parse(
      "name: one\ngroups:\n  - {name: gpu, device: a100-40, nodes: 1, devices_per_node: 1, inside: nvlink3, network: rdma-100g}\n",
      "cluster.yaml"));
  UniformPlan plan;
  plan.micro_batch = 12;
  plan.global_batch = 60;  // five micro-batches a step, as nanoGPT has on each of eight
  return price(plan, model, cluster, profile::calibration_for("a100-40")).step;
}

// nanoGPT's step was 25 % faster with the nearest multiple of 64 (Karpathy 2023).
TEST(Alignment, AnOddVocabularySlowsAStepOfGpt2ByAQuarter) {
  const double slower = gpt2_step(50257) / gpt2_step(50304);
  EXPECT_GT(slower, 1.15);
  EXPECT_LT(slower, 1.35);
}

}  // namespace
}  // namespace tessera::cost
