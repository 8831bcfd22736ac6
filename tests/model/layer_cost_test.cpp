// The work of transformer layers of all forms, against published formulas and against itself.
#include <gmock/gmock.h>
#include <rapidcheck.h>
#include <algorithm>

#include "model/model.hpp"

namespace tessera::model {
namespace {

// GPT as Megatron-LM trained it in 2022: s, b, h, a and t of Korthikanti et al.
struct Megatron {
  std::int64_t s = 2048, b = 4, h = 6144, a = 64;
  int t = 8;

  BlockSpec layer() const {
    BlockSpec block;
    block.kind = "decoder_layer";
    block.name = "h.{}";
    const auto real = [](std::int64_t value) { return static_cast<double>(value); };
    block.dims = {{"hidden", real(h)},    {"heads", real(a)}, {"kv_heads", real(a)}, {"head_dim", real(h / a)},
                  {"ffn", real(4 * h)},   {"seq", real(s)},   {"gated", 0},          {"rotary", 0},
                  {"attention_fused", 0}, {"dropout", 1},     {"autograd", 1}};
    return block;
  }
  BlockShard shard(bool sequence_parallel, Recompute recompute) const {
    BlockShard shard{b, t, Precision::f16, recompute};
    shard.sequence_parallel = sequence_parallel;
    return shard;
  }
  double saved(int tensor_parallel, bool sequence_parallel, Recompute recompute) const {
    BlockShard on = shard(sequence_parallel, recompute);
    on.tensor_parallel = tensor_parallel;
    return static_cast<double>(cost_of(layer(), on).saved.value);
  }
};

TEST(LayerCost, KeepsWhatKorthikantiEtAlCount) {
  EXPECT_TRUE(rc::check([] {
    Megatron model;
    model.t = 1 << *rc::gen::inRange(1, 4);
    model.a = model.t * *rc::gen::inRange(1, 9);
    model.h = model.a * 2 * *rc::gen::inRange(1, 65);
    model.s = model.t * *rc::gen::inRange(1, 257);
    model.b = *rc::gen::inRange(1, 9);
    const double s = static_cast<double>(model.s), b = static_cast<double>(model.b), h = static_cast<double>(model.h),
                 a = static_cast<double>(model.a), t = model.t;
    RC_ASSERT(std::abs(model.saved(1, false, Recompute::none) - s * b * h * (34 + 5 * a * s / h)) < 1);                       // equation 1
    RC_ASSERT(std::abs(model.saved(model.t, false, Recompute::none) - s * b * h * (10 + 24 / t + 5 * a * s / (h * t))) < 1);  // 2
    RC_ASSERT(std::abs(model.saved(model.t, true, Recompute::none) - s * b * h / t * (34 + 5 * a * s / h)) < 1);              // 4
    RC_ASSERT(std::abs(model.saved(model.t, true, Recompute::selective) - s * b * h * 34 / t) < 1);                           // 6
    RC_ASSERT(model.saved(1, false, Recompute::full) == 2 * s * b * h);
  }));
}

double flops(const std::vector<Operator>& operators) {
  double total = 0;
  for (const Operator& step : operators) total += step.flops.value;
  return total;
}

std::int64_t bytes(const std::vector<Exchange>& exchanges, const std::string& operation) {
  std::int64_t total = 0;
  for (const Exchange& exchange : exchanges)
    if (exchange.operation == operation) total += exchange.bytes.value;
  return total;
}

TEST(LayerCost, TheKernelsSumToTheBlock) {
  const Megatron model;
  const BlockCost cost = cost_of(model.layer(), model.shard(false, Recompute::none));
  EXPECT_DOUBLE_EQ(flops(cost.forward_operators), cost.forward.value);
  EXPECT_DOUBLE_EQ(flops(cost.backward_operators), cost.backward.value);
  EXPECT_DOUBLE_EQ(cost.backward.value, 2 * cost.forward.value);
  EXPECT_TRUE(cost.recomputed_operators.empty());
  // A layer's share of equation 7: 72 B l s h^2 (1 + s / 6h) for forward and backward.
  const double h = 6144, s = 2048;
  EXPECT_NEAR(3 * cost.forward.value * model.t, 72 * 4 * s * h * h * (1 + s / (6 * h)), 1e6);
}

TEST(LayerCost, SelectiveRecomputationRepeatsTheCoreAlone) {
  const Megatron model;
  const BlockCost cost = cost_of(model.layer(), model.shard(true, Recompute::selective));
  std::vector<std::string> names;
  for (const Operator& step : cost.recomputed_operators) names.push_back(step.name);
  EXPECT_THAT(names, ::testing::ElementsAre("scores", "softmax", "softmax_dropout", "values"));
  EXPECT_TRUE(cost.recomputed_exchanges.empty());
  const BlockCost full = cost_of(model.layer(), model.shard(true, Recompute::full));
  EXPECT_DOUBLE_EQ(flops(full.recomputed_operators), full.forward.value);
  EXPECT_EQ(full.recomputed_exchanges.size(), full.forward_exchanges.size());
}

TEST(LayerCost, SequenceParallelismMovesTheSameBytesInOtherWays) {
  const Megatron model;
  const std::int64_t whole = 2 * model.s * model.b * model.h;
  const BlockCost plain = cost_of(model.layer(), model.shard(false, Recompute::none));
  const BlockCost cut = cost_of(model.layer(), model.shard(true, Recompute::none));
  EXPECT_EQ(plain.forward_all_reduces, 2);
  EXPECT_EQ(plain.backward_all_reduces, 2);
  EXPECT_EQ(bytes(plain.forward_exchanges, "all_reduce"), 2 * whole);
  EXPECT_EQ(bytes(plain.backward_exchanges, "all_reduce"), 2 * whole);
  EXPECT_EQ(bytes(cut.forward_exchanges, "all_gather"), 2 * whole);
  EXPECT_EQ(bytes(cut.forward_exchanges, "reduce_scatter"), 2 * whole);
  // The inputs that were kept in parts are gathered once more.
  EXPECT_EQ(bytes(cut.backward_exchanges, "all_gather"), 4 * whole);
  EXPECT_EQ(bytes(cut.backward_exchanges, "reduce_scatter"), 2 * whole);
  EXPECT_EQ(cut.output.value * model.t, plain.output.value);
}

TEST(LayerCost, SumsInPiecesHaveEqualRowsAndAreNotTooSmall) {
  EXPECT_EQ(summed_pieces(1024, Bytes(1 << 20)), 4);
  EXPECT_EQ(summed_pieces(1022, Bytes(1 << 20)), 2);
  EXPECT_EQ(summed_pieces(1023, Bytes(1 << 20)), 1);
  EXPECT_EQ(summed_pieces(1024, Bytes(128 << 10)), 2);
  EXPECT_EQ(summed_pieces(1024, Bytes(127 << 10)), 1);
}

TEST(LayerCost, ContextParallelismDividesTheRowsAndTheScores) {
  BlockSpec layer =
      read_model(ConfigNode::parse("{arch: llama, hidden: 64, layers: 3, heads: 8, kv_heads: 2, ffn: 96, seq: 64, vocab: 512}", "m.yaml"))
          .repeats[1]
          .block;
  const BlockCost one = cost_of(layer, {});
  for (const ContextKind kind : {ContextKind::ring, ContextKind::ulysses}) {
    BlockShard shard;
    shard.context_parallel = 4;
    shard.context = kind;
    const BlockCost cost = cost_of(layer, shard);
    EXPECT_DOUBLE_EQ(4 * cost.forward.value, one.forward.value);
    EXPECT_EQ(4 * cost.saved.value, one.saved.value);
    EXPECT_EQ(4 * cost.output.value, one.output.value);
    const std::int64_t row = 16 * 4 * 8;  // one head's vectors on a rank
    if (kind == ContextKind::ring) {
      ASSERT_EQ(cost.forward_exchanges.size(), 1u);
      EXPECT_TRUE(cost.forward_exchanges[0].overlaps);
      EXPECT_EQ(cost.forward_exchanges[0].messages, 3);
      EXPECT_EQ(bytes(cost.forward_exchanges, "send"), 3 * 4 * row);
    } else {
      // Eight heads of queries, two of keys and of values sent to two ranks each, and eight of results.
      EXPECT_EQ(bytes(cost.forward_exchanges, "all_to_all"), (8 + 2 * 4 + 8) * row);
    }
  }
}

TEST(LayerCost, AMaskSparesTheFusedKernelAboutHalf) {
  const BlockSpec layer =
      read_model(ConfigNode::parse("{arch: llama, hidden: 64, layers: 1, heads: 8, ffn: 96, seq: 64, vocab: 512}", "m.yaml"))
          .repeats[1]
          .block;
  const BlockCost cost = cost_of(layer, {});
  const double scores = 2.0 * 8 * 64 * 64 * 8;
  EXPECT_DOUBLE_EQ(cost.forward.value - flops(cost.forward_operators), 2 * scores * (1 - 65.0 / 128));
}

TEST(LayerCost, AWindowSparesAllButItsPairs) {
  const auto layer = [](const std::string& window) {
    return read_model(
               ConfigNode::parse("{arch: llama, hidden: 64, layers: 1, heads: 8, ffn: 96, seq: 64, vocab: 512" + window + "}", "m.yaml"))
        .repeats[1]
        .block;
  };
  const BlockCost whole = cost_of(layer(""), {});
  const double pair = 2.0 * 2 * 8 * 8;  // scores and values of eight heads
  double seen = 0;
  for (int query = 0; query < 64; ++query) seen += std::min(query + 1, 20);
  const BlockCost cost = cost_of(layer(", window: 20"), {});
  EXPECT_NEAR(flops(whole.forward_operators) - flops(cost.forward_operators), pair * (64 * 65 / 2 - seen), 1e-3);
  // Counted without a mask, the window leaves the same share.
  EXPECT_NEAR(whole.forward.value - cost.forward.value, pair * 64 * 64 * (1 - seen / (64 * 65 / 2)), 1e-3);
  EXPECT_NEAR(whole.backward.value - cost.backward.value, 2.5 * (whole.forward.value - cost.forward.value), 1e-3);
  EXPECT_EQ(cost.saved, whole.saved);
  for (const char* wide : {", window: 64", ", window: 1000"}) {
    EXPECT_EQ(cost_of(layer(wide), {}).forward, whole.forward) << wide;
    EXPECT_EQ(flops(cost_of(layer(wide), {}).backward_operators), flops(whole.backward_operators)) << wide;
  }
}

TEST(LayerCost, NormsOfHeadsAreComputedAgainAndTheirGradientsSummedOverRanks) {
  const auto layer = [](const std::string& norms) {
    return read_model(
               ConfigNode::parse("{arch: llama, hidden: 64, layers: 1, heads: 8, ffn: 96, seq: 64, vocab: 512" + norms + "}", "m.yaml"))
        .repeats[1]
        .block;
  };
  const BlockCost plain = cost_of(layer(""), {2, 2});
  const BlockCost cost = cost_of(layer(", qk_norm: true"), {2, 2});
  EXPECT_EQ(cost.saved, plain.saved);
  EXPECT_GT(cost.backward_workspace, plain.backward_workspace);
  EXPECT_GT(cost.forward_traffic, plain.forward_traffic);
  ASSERT_EQ(cost.backward_exchanges.size(), plain.backward_exchanges.size() + 1);
  EXPECT_EQ(cost.backward_exchanges.back().bytes.value, 2 * 8 * 4);
}

}  // namespace
}  // namespace tessera::model
