#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "base/expect_error.hpp"
#include "model/model.hpp"

namespace tessera::model {
namespace {

using testing::error_of;

ModelSpec small() {
  return read_model(
      ConfigNode::parse("{arch: llama, hidden: 64, layers: 3, heads: 8, kv_heads: 4, ffn: 96, seq: 32, vocab: 512}", "m.yaml"));
}

TEST(Cost, ForwardFlopsAreTwiceTheProductsOfALayer) {
  const ModelSpec model = small();
  const BlockCost cost = cost_of(model.repeats[1].block, {});
  const double tokens = 32;
  const double projections = 2 * tokens * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 96);
  const double attention = 2 * 2 * 8 * tokens * tokens * 8;
  EXPECT_DOUBLE_EQ(cost.forward.value, projections + attention);
}

TEST(Cost, BackwardOfALargeModelIsAboutTwiceForward) {
  const ModelSpec model =
      read_model(ConfigNode::parse("{arch: llama, hidden: 4096, layers: 32, heads: 32, ffn: 11008, seq: 2048, vocab: 32000}", "m.yaml"));
  // Six operations for each parameter that multiplies and token, and attention beside it.
  const double products = static_cast<double>(model.parameter_count() - 32000LL * 4096) * 6 * 2048;
  const double total = training_flops_per_sample(model).value;
  EXPECT_GT(total, products);
  EXPECT_LT(total, 1.2 * products);
}

TEST(Cost, GrowsWithTheMicroBatchAndShrinksWithTensorParallelism) {
  EXPECT_TRUE(rc::check([] {
    const ModelSpec model = small();
    const std::int64_t batch = *rc::gen::inRange(1, 17);
    const int degree = 1 << *rc::gen::inRange(0, 3);
    const auto precision = *rc::gen::element(Precision::f32, Precision::bf16);
    for (const Repeat& repeat : model.repeats) {
      const BlockCost one = cost_of(repeat.block, {batch, 1, precision, Recompute::none});
      const BlockCost split = cost_of(repeat.block, {batch, degree, precision, Recompute::none});
      const BlockCost twice = cost_of(repeat.block, {2 * batch, 1, precision, Recompute::none});
      RC_ASSERT(twice.forward.value == 2 * one.forward.value);
      RC_ASSERT(std::abs(split.forward.value * degree - one.forward.value) <= 1e-9 * one.forward.value);
      RC_ASSERT(split.saved <= one.saved);
      RC_ASSERT(twice.saved >= one.saved);
      RC_ASSERT((split.forward_all_reduces + split.backward_all_reduces > 0) == (degree > 1));
      RC_ASSERT(split.output == one.output);
    }
  }));
}

// A rank works on the padded extents: as a rank of the model that has them.
TEST(Cost, OfAPaddedShardIsThatOfItsPaddedExtents) {
  const auto model = [](int ffn, int vocab) {
    return read_model(ConfigNode::parse(
        "{arch: llama, hidden: 48, layers: 2, heads: 6, ffn: " + std::to_string(ffn) + ", seq: 32, vocab: " + std::to_string(vocab) + "}",
        "m.yaml"));
  };
  const ModelSpec odd = model(97, 259);
  const ModelSpec padded = model(99, 261);
  for (std::size_t repeat = 0; repeat < odd.repeats.size(); ++repeat) {
    const BlockSpec& block = odd.repeats[repeat].block;
    const BlockSpec& wide = padded.repeats[repeat].block;
    const BlockShard shard{4, 3, Precision::bf16};
    EXPECT_EQ(cost_of(block, shard).forward.value, cost_of(wide, shard).forward.value) << block.kind;
    EXPECT_EQ(cost_of(block, shard).backward.value, cost_of(wide, shard).backward.value) << block.kind;
    EXPECT_EQ(cost_of(block, shard).saved, cost_of(wide, shard).saved) << block.kind;
    EXPECT_EQ(cost_of(block, shard).forward_traffic, cost_of(wide, shard).forward_traffic) << block.kind;
    EXPECT_EQ(cost_of(block, shard).backward_workspace, cost_of(wide, shard).backward_workspace) << block.kind;
    for (std::size_t p = 0; p < block.parameters.size(); ++p)
      EXPECT_EQ(block.parameters[p].shard_count(3), wide.parameters[p].shard_count(3)) << block.parameters[p].name;
    EXPECT_GE(cost_of(wide, BlockShard{4}).forward.value, cost_of(block, BlockShard{4}).forward.value) << block.kind;
  }
  EXPECT_EQ(odd.repeats.front().block.parameters.front().shard_count(3), 87 * 48);
  EXPECT_EQ(real_extent(259, 3, 2), 85);
  EXPECT_EQ(real_extent(4, 3, 2), 0);
}

TEST(Cost, RecomputationSavesOnlyTheInput) {
  const ModelSpec model = small();
  const BlockSpec& layer = model.repeats[1].block;
  const BlockCost kept = cost_of(layer, {4, 1, Precision::f32, Recompute::none});
  const BlockCost again = cost_of(layer, {4, 1, Precision::f32, Recompute::full});
  EXPECT_EQ(again.saved.value, 4 * 32 * 64 * 4);
  EXPECT_LT(again.saved, kept.saved);
  EXPECT_GT(again.backward_workspace, kept.backward_workspace);
  EXPECT_EQ(again.forward, kept.forward);
}

TEST(Cost, HalfPrecisionHalvesWhatIsPassedOn) {
  const BlockSpec layer = small().repeats[1].block;
  EXPECT_EQ(2 * cost_of(layer, {1, 1, Precision::bf16, Recompute::none}).output.value,
            cost_of(layer, {1, 1, Precision::f32, Recompute::none}).output.value);
}

TEST(Cost, AnUnknownBlockIsNamed) {
  BlockSpec block;
  block.kind = "conv";
  block.name = "stem";
  const Error error = error_of([&] { cost_of(block, {}); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.what(), ::testing::HasSubstr("block stem"));
}

TEST(Block, AMissingDimensionIsNamed) {
  EXPECT_THAT(error_of([] { small().dim("width"); }).what(), ::testing::HasSubstr("no dimension 'width'"));
}

}  // namespace
}  // namespace tessera::model
