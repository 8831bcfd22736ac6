#include "cost/cost_model.hpp"
#include "cost/cost.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/expect_error.hpp"
#include "plan/plan_helper.hpp"

namespace tessera::cost {
namespace {

using tessera::testing::error_of;

// A group's devices are priced by what the software that runs on them reaches.
TEST(CostModel, TakeTheCalibrationOfTheGroupsStack) {
  const model::ModelSpec model = plan::preset_job("llama-2-7b", 8).model;
  const auto forward = [&](const std::string& stack) {
    auto cluster = plan::gpu_cluster(1, 8);
    cluster.groups[0].stack = stack;
    return CostModel(model, cluster, model::Precision::bf16).block(1, 0, {.dp = 8}, 8).forward;
  };
  EXPECT_DOUBLE_EQ(forward(""), forward("llm-foundry"));
  EXPECT_NE(forward(""), forward("megatron-2022"));
  // In a cluster file, with its line.
  const auto written = cluster::read_cluster(ConfigNode::parse(
      "name: g\ngroups:\n  - {name: gpu, device: a100-80, devices_per_node: 8, inside: nvlink3, stack: megatron-2021a}\n", "cluster.yaml"));
  const Error error = error_of([&] { CostModel(model, written, model::Precision::bf16); });
  EXPECT_THAT(error.what(), ::testing::HasSubstr("cluster.yaml:3"));
  EXPECT_THAT(error.hint(), ::testing::HasSubstr("did you mean 'megatron-2021'?"));
  EXPECT_EQ(cluster::read_cluster(ConfigNode::parse(cluster::to_yaml(written), "cluster.yaml")).groups[0].stack, "megatron-2021a");
}

// Images of 257 patches: the number of rows of a product aligns nothing.
TEST(CostModel, AnyNumberOfTokensIsAsFastForMatrixUnits) {
  const model::ModelSpec vit = model::read_model(ConfigNode::parse("{preset: vit-h-14}", "model"));
  const auto cluster = plan::gpu_cluster(1, 8);
  CostModel cost_model(vit, cluster, model::Precision::bf16);
  plan::Strategy strategy;
  strategy.dp = 8;
  const auto passes = [&](std::int64_t samples) {
    const BlockLoad& load = cost_model.block(1, 0, strategy, samples);
    return (load.forward + load.backward()) / static_cast<double>(samples);
  };
  EXPECT_NEAR(passes(8 * 9) / passes(8 * 8), 1, 0.15);
}

TEST(CostModel, TiedParametersStayInsideAClusterOfOneNode) {
  const model::ModelSpec model = plan::preset_job("llama-3.2-1b", 8).model;
  plan::Strategy strategy;
  const auto tied = [&](const cluster::ClusterSpec& cluster) {
    CostModel cost_model(model, cluster, model::Precision::bf16);
    return cost_model.block(static_cast<int>(model.repeats.size()) - 1, 0, strategy, 8).tied_exchange;
  };
  EXPECT_GT(tied(plan::gpu_cluster(1, 4)), 0);
  EXPECT_LT(tied(plan::gpu_cluster(1, 4)), tied(plan::gpu_cluster(2, 4)) / 4);
}

// Weights gathered within a node cost the same on any number of nodes; over all ranks, each of them adds to the wait.
TEST(CostModel, ShardingGroupsKeepGathersInsideTheNode) {
  const model::ModelSpec model = plan::preset_job("llama-2-7b", 4096).model;
  const auto layer = [&](int nodes, int shards) {
    const auto cluster = plan::gpu_cluster(nodes, 8);
    plan::Strategy strategy;
    strategy.dp = 8 * nodes;
    strategy.zero = 3;
    strategy.shards = shards;
    return CostModel(model, cluster, model::Precision::bf16).block(1, 0, strategy, 8 * nodes);
  };
  EXPECT_NEAR(layer(4, 8).forward, layer(64, 8).forward, 1e-12);
  EXPECT_LT(layer(64, 8).forward, layer(64, 0).forward);
  EXPECT_GT(layer(256, 0).forward, 1.1 * layer(16, 0).forward);
  // Copies across nodes are summed once a step, which one group for all has no need of.
  EXPECT_GT(layer(64, 8).exchange, layer(64, 0).exchange);
  // State is a node's share instead of a cluster's.
  EXPECT_NEAR(layer(64, 8).state_bytes(), 64 * layer(64, 0).state_bytes(), 1);
  EXPECT_NEAR(layer(64, 512).state_bytes(), layer(64, 0).state_bytes(), 1e-6);
}

// Whole experts are spread over tensor-parallel ranks too, which take a part of the tokens each.
TEST(CostModel, WholeExpertsHoldAsMuchAndSendLess) {
  const model::ModelSpec model = plan::preset_job("mixtral-8x7b", 16).model;
  const auto layer = [&](bool whole, int ep) {
    const auto cluster = plan::gpu_cluster(2, 8);
    plan::Strategy strategy;
    strategy.dp = 8;
    strategy.tp = 2;
    strategy.ep = ep;
    strategy.whole_experts = whole;
    return CostModel(model, cluster, model::Precision::bf16).block(1, 0, strategy, 16);
  };
  EXPECT_NEAR(layer(true, 8).weights, layer(false, 4).weights, 1);
  EXPECT_LT(layer(true, 8).spent.expert_exchange, layer(false, 8).spent.expert_exchange);
}

// What the model says of attention, dropout and what is kept counts; the stack decides only what it leaves open.
TEST(CostModel, HonoursWhatTheModelSaysOfHowItRuns) {
  const auto layer = [](const std::string& more, const std::string& stack) {
    const model::ModelSpec model = model::read_model(ConfigNode::parse("{preset: llama-2-7b" + more + "}", "model.yaml"));
    auto cluster = plan::gpu_cluster(1, 8);
    cluster.groups[0].stack = stack;
    return CostModel(model, cluster, model::Precision::bf16).block(1, 0, {.dp = 8}, 8);
  };
  const BlockLoad plain = layer("", "llm-foundry");
  EXPECT_EQ(layer(", attention: fused", "llm-foundry").saved, plain.saved);
  const BlockLoad unfused = layer(", attention: unfused", "llm-foundry");
  EXPECT_GT(unfused.saved, plain.saved);
  EXPECT_GT(unfused.forward, plain.forward);
  const BlockLoad dropout = layer(", dropout: 0.1", "llm-foundry");
  EXPECT_GT(dropout.saved, plain.saved);
  EXPECT_GT(dropout.forward, plain.forward);
  EXPECT_LT(layer(", keeps: tessera", "llm-foundry").saved, plain.saved);
  // A stack without a fused kernel.
  EXPECT_GT(layer("", "megatron-2021").saved, plain.saved);
  const Error error = error_of([&] { layer(", attention: fused", "megatron-2021"); });
  EXPECT_THAT(error.what(), ::testing::HasSubstr("the stack 'megatron-2021'"));
  EXPECT_THAT(error.what(), ::testing::HasSubstr("has no fused kernel"));
}

// A block of Mixtral-8x7B on 4 nodes of 4 devices, each with its share of the experts, so that those with the same experts are on
// different nodes.
BlockLoad block_with_experts(int zero, double bits_per_second) {
  const model::ModelSpec model = plan::preset_job("mixtral-8x7b", 16).model;
  auto cluster = plan::gpu_cluster(4, 4);
  cluster.groups[0].network.bandwidth = BytesPerSecond(bits_per_second / 8);
  CostModel cost_model(model, cluster, model::Precision::bf16);
  plan::Strategy strategy{.dp = 16, .zero = zero};
  strategy.ep = 4;
  return cost_model.block(1, 0, strategy, 16);
}

// Of two experts of three matrices of 4096 x 14336 in 16 bits, through adapters that four devices share.
constexpr double kGatherOfExperts = 4 * (2.0 * 3 * 4096 * 14336 * 2) * 3 / 4 / (1e6 / 8);

TEST(CostModel, GathersTheExpertsWeightsOfZero3BeforeEveryPass) {
  const BlockLoad fast = block_with_experts(3, 1e15);
  const BlockLoad slow = block_with_experts(3, 1e6);
  EXPECT_GT(slow.forward - fast.forward, kGatherOfExperts);
  EXPECT_GT(slow.backward() - fast.backward(), 2 * kGatherOfExperts);
  EXPECT_EQ(slow.exchange, 0);
}

// Of an expert's width of 31, two ranks would hold 16 each with padding; a whole expert has none.
TEST(CostModel, WholeExpertsAreNeitherCutNorPadded) {
  const auto job = model::read_job(ConfigNode::parse(
      "name: test\nmodel: {arch: deepseek, hidden: 48, layers: 4, heads: 6, ffn: 100, seq: 32, vocab: 258, q_lora: 24, kv_lora: 16, "
      "nope_dim: 8, rope_dim: 8, v_dim: 8, experts: 4, experts_per_token: 2, expert_ffn: 31, shared_ffn: 34, dense_layers: 2}\n"
      "data: {source: synthetic}\ntrain: {global_batch: 8, precision: bf16}\n",
      "train.yaml"));
  const auto cluster = plan::gpu_cluster(1, 8);
  CostModel cost_model(job.model, cluster, model::Precision::bf16);
  const auto weights = [&](const plan::Strategy& strategy) { return cost_model.block(2, 0, strategy, 2).weights; };
  // A matrix of an expert's rows and columns has 48 x its width elements of 2 bytes; gate, up and down.
  const double each = 3 * 48 * 2;
  const plan::Strategy cut{.dp = 2, .tp = 2, .ep = 2};
  plan::Strategy whole = cut;
  whole.whole_experts = true;
  EXPECT_DOUBLE_EQ(weights(whole) - weights(cut), 2 * each * (31 - 16));
  whole.ep = 4;
  EXPECT_DOUBLE_EQ(weights(whole) - weights(cut), each * (31 - 2 * 16));
}

// ZeRO-2 cuts gradients and the optimizer's state: weights are whole when a pass begins.
TEST(CostModel, GathersTheWeightsOfZero2OnceAStep) {
  const BlockLoad fast = block_with_experts(2, 1e15);
  const BlockLoad slow = block_with_experts(2, 1e6);
  EXPECT_EQ(slow.forward, block_with_experts(1, 1e6).forward);
  EXPECT_GT(slow.backward() - fast.backward(), kGatherOfExperts);
  EXPECT_LT(slow.backward(), block_with_experts(3, 1e6).backward());
  EXPECT_GT(slow.exchange - fast.exchange, kGatherOfExperts);
}

// Two stages of each node are neighbours there, but the pipeline goes on to the next node.
TEST(CostModel, AMessageOfANarrowStageMayLeaveItsNode) {
  const model::ModelSpec model = plan::preset_job("llama-3-8b", 16).model;
  const auto seconds = [&](int nodes, double bits_per_second) {
    auto cluster = plan::gpu_cluster(nodes, 8);
    cluster.groups[0].network.bandwidth = BytesPerSecond(bits_per_second / 8);
    return CostModel(model, cluster, model::Precision::bf16).message(1e6, 0, 4, 0, 4);
  };
  EXPECT_GT(seconds(2, 1e6), 1e6 / (1e6 / 8));
  EXPECT_GT(seconds(2, 1e6), 1e3 * seconds(2, 4e11));
  EXPECT_EQ(seconds(1, 1e6), seconds(1, 4e11));
}

// A ring of 8 ranks with a stride of 2 over nodes of 8 devices.
TEST(CostModel, RingAttentionOverSeveralNodesTakesTheNetwork) {
  const model::ModelSpec model = plan::preset_job("llama-3-8b", 16).model;
  const auto forward = [&](int cp, double bits_per_second) {
    auto cluster = plan::gpu_cluster(2, 8);
    cluster.groups[0].network.bandwidth = BytesPerSecond(bits_per_second / 8);
    plan::Strategy strategy{.dp = 8 / cp, .tp = 2};
    strategy.cp = cp;
    return CostModel(model, cluster, model::Precision::bf16).block(1, 0, strategy, 8).forward;
  };
  EXPECT_GT(forward(8, 1e6), 100 * forward(8, 4e11));
  EXPECT_EQ(forward(4, 1e6), forward(4, 4e11));
}

// What is shared: adapters by the devices of a node, whatever `shared` says of the network; the inside link where it says so.
TEST(CostModel, DevicesShareTheAdaptersOfTheirNode) {
  const model::ModelSpec model = plan::preset_job("llama-3-8b", 16).model;
  auto cluster = plan::gpu_cluster(2, 8);
  cluster.groups.push_back(plan::gpu_cluster(2, 8, "h100-sxm").groups[0]);
  cluster.groups[1].name = "second";
  cluster.between = cluster::known_link("rdma-100g");
  const auto message = [&](int width) { return CostModel(model, cluster, model::Precision::bf16).message(1e12, 0, width, 1, width); };
  const auto exchange = [&](int dp, int tp) {
    return CostModel(model, cluster, model::Precision::bf16).block(1, 0, {.dp = dp, .tp = tp}, 16).exchange;
  };
  const double by_one_node = message(8);
  EXPECT_DOUBLE_EQ(message(4), by_one_node);
  EXPECT_NEAR(message(16), by_one_node / 2, 1e-3);
  const double over_nodes = exchange(2, 8);
  const double inside = exchange(8, 1);
  cluster.between.shared = cluster.groups[0].network.shared = true;
  EXPECT_EQ(message(8), by_one_node);
  EXPECT_EQ(exchange(2, 8), over_nodes);
  cluster.groups[0].inside.shared = true;
  EXPECT_GT(exchange(8, 1), 4 * inside);
}

}  // namespace
}  // namespace tessera::cost
