#include "program/block_pass.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace tessera::program {
namespace {

using model::BlockCost;
using model::BlockShard;
using model::BlockSpec;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

BlockSpec layer_of(const std::string& model) {
  BlockSpec out = model::read_model(ConfigNode::parse(model, "model")).repeats[1].block;
  out.dims["autograd"] = 1;
  return out;
}

BlockSpec dense_layer() { return layer_of("{arch: llama, hidden: 64, layers: 3, heads: 8, kv_heads: 4, ffn: 96, seq: 64, vocab: 512}"); }

BlockSpec layer_of_experts() {
  return layer_of(
      "{arch: deepseek, hidden: 64, layers: 3, heads: 8, ffn: 128, seq: 64, vocab: 512, q_lora: 24, kv_lora: 16, nope_dim: 8, "
      "rope_dim: 8, v_dim: 8, experts: 8, experts_per_token: 2, expert_ffn: 32, shared_ffn: 32, dense_layers: 0}");
}

BlockShard cut_in_four() {
  BlockShard out;
  out.tensor_parallel = 4;
  out.sequence_parallel = true;
  return out;
}

// "all_gather: norm..qkv": begins after the step of the one operator, and that of the other waits for it.
std::vector<std::string> described(const BlockPass& pass, const std::vector<model::Operator>& operators,
                                   const std::vector<model::Exchange>& exchanges) {
  const auto name = [&](int step) {
    if (step < 0) return std::string();
    if (step >= static_cast<int>(pass.computing.size())) return std::string("end");
    return operators[static_cast<std::size_t>(pass.computing[static_cast<std::size_t>(step)].op)].name;
  };
  std::vector<std::string> out;
  for (const ExchangeStep& step : pass.exchanges)
    out.push_back(exchanges[static_cast<std::size_t>(step.exchange)].operation + ": " + name(step.after) + ".." + name(step.before));
  return out;
}

TEST(BlockPass, ExchangesStandWhereTheirTensorsAreMadeAndRead) {
  const BlockCost cost = cost_of(dense_layer(), cut_in_four());
  const BlockPass forward = block_pass(cost.forward_operators, cost.forward_exchanges, {});
  EXPECT_THAT(described(forward, cost.forward_operators, cost.forward_exchanges),
              ElementsAre("all_gather: norm..qkv", "reduce_scatter: attention_out..residual", "all_gather: ffn_norm..ffn_in",
                          "reduce_scatter: ffn_out..residual"));
  const BlockPass backward = block_pass(cost.backward_operators, cost.backward_exchanges, {.weight_gradients = true});
  EXPECT_THAT(described(backward, cost.backward_operators, cost.backward_exchanges),
              ElementsAre("all_gather: residual_grad..ffn_out_dgrad", "all_gather: activation_grad..ffn_in_wgrad",
                          "reduce_scatter: ffn_in_dgrad..ffn_norm_grad", "all_gather: residual_grad..attention_out_dgrad",
                          "all_gather: rotary_grad..qkv_wgrad", "reduce_scatter: qkv_dgrad..norm_grad"));
}

TEST(BlockPass, WithoutOverlapTheGradientsOfAMapWaitForItsExchanges) {
  const BlockCost cost = cost_of(dense_layer(), cut_in_four());
  const BlockPass backward = block_pass(cost.backward_operators, cost.backward_exchanges, {});
  EXPECT_THAT(described(backward, cost.backward_operators, cost.backward_exchanges),
              ElementsAre("all_gather: residual_grad..ffn_out_dgrad", "all_gather: activation_grad..ffn_in_dgrad",
                          "reduce_scatter: ffn_in_dgrad..ffn_in_wgrad", "all_gather: residual_grad..attention_out_dgrad",
                          "all_gather: rotary_grad..qkv_dgrad", "reduce_scatter: qkv_dgrad..qkv_wgrad"));
}

TEST(BlockPass, TheRingRunsBesideAttention) {
  BlockShard shard;
  shard.context_parallel = 4;
  const BlockCost cost = cost_of(dense_layer(), shard);
  const BlockPass forward = block_pass(cost.forward_operators, cost.forward_exchanges, {});
  EXPECT_THAT(described(forward, cost.forward_operators, cost.forward_exchanges), ElementsAre("send: rotary..attention_out"));
  const BlockPass backward = block_pass(cost.backward_operators, cost.backward_exchanges, {});
  EXPECT_THAT(described(backward, cost.backward_operators, cost.backward_exchanges), ElementsAre("send: attention_out_wgrad..rotary_grad"));
}

TEST(BlockPass, AllToAllsWaitForTheRouterAndRunBesideSharedExperts) {
  BlockShard shard;
  shard.expert_parallel = 4;
  const BlockCost cost = cost_of(layer_of_experts(), shard);
  const auto forward = [&](bool shared) {
    const BlockPass pass = block_pass(cost.forward_operators, cost.forward_exchanges, {.shared_experts = shared});
    return described(pass, cost.forward_operators, cost.forward_exchanges);
  };
  EXPECT_THAT(forward(true), ElementsAre("all_to_all: dispatch..experts_in", "all_to_all: experts_out..combine"));
  EXPECT_THAT(forward(false), ElementsAre("all_to_all: dispatch..shared_in", "all_to_all: experts_out..combine"));
  const BlockPass backward = block_pass(cost.backward_operators, cost.backward_exchanges, {.shared_experts = true});
  EXPECT_THAT(described(backward, cost.backward_operators, cost.backward_exchanges),
              ElementsAre("all_to_all: combine_grad..experts_out_dgrad", "all_to_all: experts_in_wgrad..dispatch_grad"));
}

TEST(BlockPass, WhereTwoMicroBatchesTakeTurnsOnlyTheEndWaitsForAllToAlls) {
  BlockShard shard;
  shard.expert_parallel = 4;
  const BlockCost cost = cost_of(layer_of_experts(), shard);
  const BlockPass pass = block_pass(cost.forward_operators, cost.forward_exchanges, {.second_micro_batch = true});
  EXPECT_THAT(described(pass, cost.forward_operators, cost.forward_exchanges), ElementsAre("all_to_all: ..end", "all_to_all: ..end"));
}

TEST(BlockPass, PiecesOfAnExchangeAlternateWithThoseOfTheProduct) {
  const BlockCost cost = cost_of(dense_layer(), cut_in_four());
  const BlockPass pass = block_pass(cost.forward_operators, cost.forward_exchanges, {.pieces = 2});
  // norm, qkv, qkv, rotary, attention, attention_out twice, residual
  ASSERT_GE(pass.exchanges.size(), 4u);
  EXPECT_EQ(pass.exchanges[0].after, 0);
  EXPECT_EQ(pass.exchanges[0].before, 1);
  EXPECT_EQ(pass.exchanges[1].after, 0);
  EXPECT_EQ(pass.exchanges[1].before, 2);
  EXPECT_EQ(pass.exchanges[2].after, 5);
  EXPECT_EQ(pass.exchanges[2].before, 7);
  EXPECT_EQ(pass.exchanges[3].after, 6);
  EXPECT_EQ(pass.exchanges[3].before, 7);
  EXPECT_EQ(pass.exchanges[0].bytes.value + pass.exchanges[1].bytes.value, cost.forward_exchanges[0].bytes.value);
}

// What the pass breaks of its promises: each operator whole and in order, and each exchange with all of its bytes, not before what it moves
// has been computed and not after the operator that needs it; nothing waits in a circle. Empty: none.
std::string broken(const BlockPass& pass, const std::vector<model::Operator>& operators, const std::vector<model::Exchange>& exchanges) {
  std::vector<int> first;  // step of each operator
  for (std::size_t step = 0; step < pass.computing.size();) {
    const auto [op, pieces] = pass.computing[step];
    if (op != static_cast<int>(first.size())) return text("step ", step, " is of operator ", op, " and not of ", first.size());
    first.push_back(static_cast<int>(step));
    for (int piece = 0; piece < pieces; ++piece, ++step)
      if (step >= pass.computing.size() || pass.computing[step].op != op || pass.computing[step].pieces != pieces)
        return text("operator ", op, " lacks piece ", piece, " of ", pieces);
  }
  if (first.size() != operators.size()) return text("it has ", first.size(), " of ", operators.size(), " operators");
  const int end = static_cast<int>(pass.computing.size());
  first.push_back(end);
  std::vector<std::int64_t> moved(exchanges.size());
  std::vector<int> pieces_moved(exchanges.size());
  int begun = -1;
  for (const ExchangeStep& step : pass.exchanges) {
    const model::Exchange& exchange = exchanges.at(step.exchange);
    const std::string name = text(exchange.operation, " ", step.exchange);
    if (step.after < begun) return name + " queues behind an exchange that begins later";
    begun = step.after;
    moved[step.exchange] += step.bytes.value;
    if (step.of_second) {
      if (exchange.axis != model::Exchange::Axis::expert || step.before != end) return name + " of a second micro-batch is waited for";
      continue;
    }
    if (step.before <= step.after || step.after >= end) return name + " waits for what waits for it";
    // Piece by piece, with the same piece of the product: the next pieces of a scatter are still computed, and the first ones of a
    // gather computed already.
    const int piece = pieces_moved[step.exchange]++;
    const bool gathers = exchange.operation == "all_gather";
    const int op = gathers ? exchange.needed : exchange.ready - 1;
    const bool cut = exchange.axis == model::Exchange::Axis::tensor && (gathers || exchange.operation == "reduce_scatter") &&
                     exchange.ready == exchange.needed && op >= 0 && op < static_cast<int>(operators.size()) &&
                     pass.computing[first[op]].pieces > 1;
    if (step.after < (cut && !gathers ? first[op] + piece : first[exchange.ready] - 1))
      return name + " begins before what it moves has been computed";
    if (step.before > (cut && gathers ? first[op] + piece : first[exchange.needed])) return name + " ends after the operator that needs it";
  }
  for (std::size_t e = 0; e < exchanges.size(); ++e)
    if (moved[e] != exchanges[e].bytes.value) return text(exchanges[e].operation, " ", e, " moves ", moved[e], " of its bytes");
  return {};
}

RC_GTEST_PROP(BlockPass, HoldsWhateverTheStrategyAndTheRules, ()) {
  BlockShard shard;
  shard.tensor_parallel = *rc::gen::element(1, 2, 4);
  shard.sequence_parallel = shard.tensor_parallel > 1 && *rc::gen::arbitrary<bool>();
  shard.context_parallel = *rc::gen::element(1, 2);
  shard.context = *rc::gen::element(model::ContextKind::ring, model::ContextKind::ulysses);
  shard.expert_parallel = *rc::gen::element(1, 4);
  shard.recompute = *rc::gen::element(model::Recompute::none, model::Recompute::selective, model::Recompute::full);
  shard.micro_batch_size = *rc::gen::inRange(1, 4);
  BlockSpec layer = *rc::gen::arbitrary<bool>() ? layer_of_experts() : dense_layer();
  if (*rc::gen::arbitrary<bool>()) layer.dims["attention_fused"] = 0;
  const BlockCost cost = cost_of(layer, shard);
  const BesideRules rules{*rc::gen::element(1, 2, 4, 7), *rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<bool>(),
                          *rc::gen::arbitrary<bool>()};
  const auto expect_whole = [&](const std::vector<model::Operator>& operators, const std::vector<model::Exchange>& exchanges) {
    RC_ASSERT(broken(block_pass(operators, exchanges, rules), operators, exchanges) == "");
  };
  expect_whole(cost.forward_operators, cost.forward_exchanges);
  expect_whole(cost.backward_operators, cost.backward_exchanges);
  expect_whole(cost.recomputed_operators, cost.recomputed_exchanges);
}

TEST(BlockPass, WhatIsMissingEarlyOrLateIsFound) {
  const BlockCost cost = cost_of(dense_layer(), cut_in_four());
  const BlockPass right = block_pass(cost.forward_operators, cost.forward_exchanges, {.pieces = 2});
  const auto found = [&](const auto& spoil) {
    BlockPass pass = right;
    spoil(pass);
    return broken(pass, cost.forward_operators, cost.forward_exchanges);
  };
  EXPECT_THAT(found([](BlockPass& pass) { pass.exchanges.pop_back(); }), HasSubstr("reduce_scatter 3 moves"));
  EXPECT_THAT(found([](BlockPass& pass) { pass.exchanges[0].bytes.value -= 8; }), HasSubstr("all_gather 0 moves"));
  EXPECT_THAT(found([](BlockPass& pass) { pass.exchanges[0].after = -1; }), HasSubstr("begins before what it moves"));
  EXPECT_THAT(found([](BlockPass& pass) { pass.exchanges[2].after = 4; }), HasSubstr("begins before what it moves"));
  EXPECT_THAT(found([](BlockPass& pass) { ++pass.exchanges[1].before; }), HasSubstr("after the operator that needs it"));
  EXPECT_THAT(found([](BlockPass& pass) { pass.exchanges[0].after = 1; }), HasSubstr("waits for what waits for it"));
  EXPECT_THAT(found([](BlockPass& pass) { std::swap(pass.exchanges[1], pass.exchanges[2]); }), HasSubstr("queues behind"));
  EXPECT_THAT(found([](BlockPass& pass) { pass.computing.pop_back(); }), HasSubstr("operators"));
  EXPECT_THAT(found([](BlockPass& pass) { pass.computing[1].op = 2; }), HasSubstr("step 1 is of operator 2"));
}

}  // namespace
}  // namespace tessera::program
