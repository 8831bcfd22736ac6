// Tensor-parallel ranks as processes, against one rank that holds everything.
#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <functional>
#include <limits>
#include <utility>

#include "comm/comm.hpp"
#include "nn/decoder_helper.hpp"
#include "nn/memory_helper.hpp"
#include "nn/ranks_helper.hpp"

namespace tessera::nn::test {
namespace {

using model::Precision;

Pass pass_of(const Batch& batch, Precision precision, const comm::Group& group = {}) {
  Pass pass;
  pass.batch = &batch;
  pass.precision = precision;
  pass.loss_scale = 0.01;
  pass.tensor_group = group;
  pass.drops = true;
  return pass;
}

const model::ParameterSpec& spec_of(const model::ModelSpec& spec, const std::string& name) {
  for (const model::BlockInstance& instance : spec.blocks()) {
    for (const model::ParameterSpec& parameter : instance.spec->parameters) {
      if (instance.parameter_name(parameter) == name) return parameter;
    }
  }
  throw Error(ErrorCode::internal, "no parameter " + name);
}

const Dims kPlain{.hidden = 64, .layers = 2, .heads = 8, .kv_heads = 4, .ffn = 96, .vocab = 160, .seq = 40};
const Dims kEverything{.hidden = 64,
                       .layers = 2,
                       .heads = 8,
                       .kv_heads = 4,
                       .ffn = 96,
                       .vocab = 160,
                       .seq = 40,
                       .head_dim = 12,
                       .window = 11,
                       .qkv_bias = true,
                       .qk_norm = true,
                       .scaled = true};

const Dims kGpt{
    .hidden = 64, .layers = 2, .heads = 8, .kv_heads = 8, .ffn = 96, .vocab = 160, .seq = 40, .tied = true, .dropout = 0.2, .gpt = true};
const Dims kGptWithAllElse{.hidden = 64,
                           .layers = 2,
                           .heads = 8,
                           .kv_heads = 4,
                           .ffn = 96,
                           .vocab = 160,
                           .seq = 40,
                           .head_dim = 12,
                           .gpt = true,
                           .gated = true,
                           .embedding_norm = true,
                           .positions = "rotary"};

const Dims kBert{.hidden = 64,
                 .layers = 2,
                 .heads = 8,
                 .kv_heads = 8,
                 .ffn = 96,
                 .vocab = 160,
                 .seq = 40,
                 .tied = true,
                 .dropout = 0.2,
                 .bert = true,
                 .token_types = true};

const Dims kSplit{
    .hidden = 64, .layers = 1, .heads = 8, .kv_heads = 8, .ffn = 96, .vocab = 160, .seq = 40, .tied = true, .bert = true, .split = true};

// Long enough that sums are made in pieces.
const Dims kLong{.hidden = 256, .layers = 1, .kv_heads = 4, .seq = 128};

class TensorParallel : public testing::TestWithParam<std::tuple<int, Precision, Dims>> {
 protected:
  const Dims dims_ = std::get<2>(GetParam());
  const model::ModelSpec spec_ = decoder(dims_);
  const int degree_ = std::get<0>(GetParam());
  const Precision precision_ = std::get<1>(GetParam());
  const double tolerance_ = precision_ == Precision::f32 ? 1e-5 : bf16_tolerance();
};

TEST_P(TensorParallel, GivesTheLossAndGradientsOfOneRank) {
  const auto whole = whole_parameters(spec_, 7);
  const Batch batch = random_batch(dims_, 3, 3);
  Model one(spec_, whole, precision_);
  const Model::Step expected = one.step(pass_of(batch, precision_));
  in_ranks(degree_, [&](const comm::Group& group) {
    for (const auto& [recompute, sequence_parallel] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      const BlockPlacement placement{group.rank(), group.size()};
      Model model(spec_, whole, precision_, placement);
      Pass pass = pass_of(batch, precision_, group);
      pass.sequence_parallel = sequence_parallel;
      const Model::Step step = model.step(pass, recompute);
      EXPECT_NEAR(step.loss, expected.loss, (precision_ == Precision::f32 ? 1e-5 : 5e-3) * expected.loss);
      EXPECT_EQ(step.tokens, expected.tokens);
      for (const auto& [name, grad] : model.grads()) {
        const at::Tensor wanted = shard_of(one.grads().at(name), spec_of(spec_, name), placement);
        EXPECT_LT(gradient_error(name, grad, wanted, model.grads()), (cancels(name) ? 2 : 1) * tolerance_) << name;
      }
    }
  });
}

// A block's exchanges and what it keeps are what the planner counts with.
TEST_P(TensorParallel, ExchangesAndKeepsWhatTheCostSays) {
  in_ranks(degree_, [&](const comm::Group& group) {
    const auto whole = whole_parameters(spec_, 7);
    const Batch batch = random_batch(dims_, 3, 3);
    for (const bool sequence_parallel : {false, true}) {
      Model model(spec_, whole, precision_, {group.rank(), group.size()});
      Pass pass = pass_of(batch, precision_, group);
      pass.sequence_parallel = sequence_parallel;
      std::vector<Interval> exchanges;
      pass.exchanges = &exchanges;
      std::vector<Saved> saved(model.size());
      Tensors tensors;
      const auto expect = [&](const model::BlockInstance& block, bool forward) {
        const model::BlockCost cost = model::cost_of(
            *block.spec,
            {.micro_batch_size = 3, .tensor_parallel = degree_, .precision = precision_, .sequence_parallel = sequence_parallel});
        int messages = 0;
        for (const model::Exchange& one : forward ? cost.forward_exchanges : cost.backward_exchanges) messages += one.messages;
        EXPECT_EQ(std::ssize(std::exchange(exchanges, {})), messages) << block.name() << (forward ? " forward" : " backward");
        if (!forward) return;
        std::int64_t kept = 0;
        for (const at::Tensor& tensor : saved[static_cast<std::size_t>(block.index)].tensors)
          kept += tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
        EXPECT_EQ(kept, cost.saved.value) << block.name();
        if (block.index + 1 < spec_.block_count()) {
          EXPECT_EQ(static_cast<std::int64_t>(tensors[0].nbytes()), cost.output.value);
        }
      };
      const std::vector<model::BlockInstance> blocks = spec_.blocks();
      for (std::size_t b = 0; b < blocks.size(); ++b) {
        tensors = model.block(b).forward(tensors, saved[b], pass);
        expect(blocks[b], true);
      }
      tensors.clear();
      for (std::size_t b = blocks.size(); b-- > 0;) {
        tensors = model.block(b).backward_input(tensors, saved[b], pass);
        model.block(b).backward_weight(saved[b], pass);
        expect(blocks[b], false);
      }
    }
  });
}

TEST(SequenceParallel, PeakOfAStepIsWithinTenPercentOfWhatIsAllocated) {
  const Dims dims{.hidden = 256, .layers = 4, .heads = 4, .kv_heads = 4, .ffn = 704, .vocab = 1000, .seq = 128, .qk_norm = true};
  const model::ModelSpec spec = decoder(dims);
  const auto whole = whole_parameters(spec, 1);
  Batch batch = random_batch(dims, 4, 1);
  batch.tensors["targets"] = batch.at("tokens");  // all count
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const model::Recompute recompute : {model::Recompute::none, model::Recompute::selective, model::Recompute::full}) {
    const auto shard = [&](bool cut) {
      return model::BlockShard{.micro_batch_size = 4, .tensor_parallel = 4, .recompute = recompute, .sequence_parallel = cut};
    };
    EXPECT_LT(expected_peak(spec, shard(true)), expected_peak(spec, shard(false)));
    EXPECT_LT(expected_peak(spec, shard(true)), std::exchange(least, expected_peak(spec, shard(true))));
    in_ranks(4, [&](const comm::Group& group) {
      for (const bool cut : {false, true}) {
        Model model(spec, whole, Precision::f32, {group.rank(), group.size()});
        Pass pass = pass_of(batch, Precision::f32, group);
        pass.sequence_parallel = cut;
        pass.recompute_attention = recompute == model::Recompute::selective;
        auto meter = std::make_shared<MemoryMeter>();
        {
          c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
          model.step(pass, recompute == model::Recompute::full);
        }
        const auto expected = static_cast<double>(expected_peak(spec, shard(cut)));
        EXPECT_NEAR(static_cast<double>(meter->peak()), expected, 0.1 * expected) << model::name_of(recompute) << (cut ? ", cut" : "");
        EXPECT_EQ(meter->held(), 0);
      }
    });
  }
}

TEST_P(TensorParallel, GivesWholeLogitsOnEveryRankAndThroughTheCacheWhereThereIsOne) {
  const auto whole = whole_parameters(spec_, 7);
  Batch all = random_batch(dims_, 2, 3);
  all.tensors.erase("targets");
  const at::Tensor expected = Model(spec_, whole, precision_).logits(pass_of(all, precision_));
  in_ranks(degree_, [&](const comm::Group& group) {
    Model model(spec_, whole, precision_, {group.rank(), group.size()});
    if (dims_.bert) {
      EXPECT_LT(relative_error(model.logits(pass_of(all, precision_, group)), expected), tolerance_);
      return;
    }
    const auto dtype = precision_ == Precision::f32 ? at::kFloat : at::kBFloat16;
    std::vector<KeyValueCache> caches(static_cast<std::size_t>(dims_.layers));
    for (KeyValueCache& cache : caches) {
      cache.keys = at::empty({2, dims_.kv_heads / degree_, dims_.seq, dims_.head()}, dtype);
      cache.values = at::empty_like(cache.keys);
    }
    std::int64_t position = 0;
    for (const std::int64_t length : {17, 1, 22}) {
      const Batch part{{{"tokens", all.at("tokens").narrow(1, position, length).contiguous()}}};
      Pass pass = pass_of(part, precision_, group);
      pass.position = position;
      EXPECT_LT(relative_error(model.logits(pass, &caches), expected.narrow(1, position, length)), tolerance_);
      position += length;
    }
  });
}

// Neither the vocabulary nor the feed-forward network's width divides by 2 or by 3.
class Padded : public testing::TestWithParam<std::tuple<int, Dims>> {
 protected:
  const int degree_ = std::get<0>(GetParam());
  const Dims dims_ = std::get<1>(GetParam());
  const model::ModelSpec spec_ = decoder(dims_);

  at::Tensor padding_of(const at::Tensor& stacked, const model::ParameterSpec& whole, const BlockPlacement& placement) const {
    const model::ParameterSpec spec = whole.unstacked();
    const at::Tensor shard = stacked.view(shard_shape(spec, placement));
    const std::int64_t held = shard.size(spec.split_dim);
    const std::int64_t real = std::min(held, spec.shape[static_cast<std::size_t>(spec.split_dim)] - held * placement.tensor_rank);
    return shard.narrow(spec.split_dim, real, held - real);
  }
};

TEST_P(Padded, GivesPyTorchsUnpaddedLossAndGradientsAndNoneToPadding) {
  const auto whole = whole_parameters(spec_, 7);
  const Batch batch = random_batch(dims_, 3, 3);
  const Reference expected = reference(dims_, whole, batch, pass_of(batch, Precision::f32).loss_scale);
  in_ranks(degree_, [&](const comm::Group& group) {
    const Pass pass = pass_of(batch, Precision::f32, group);
    const BlockPlacement placement{group.rank(), group.size()};
    for (const bool recompute : {false, true}) {
      Model model(spec_, whole, Precision::f32, placement);
      const Model::Step step = model.step(pass, recompute);
      EXPECT_NEAR(step.loss, expected.loss, 1e-6 * expected.loss);
      std::int64_t padded = 0;
      for (const auto& [name, grad] : model.grads()) {
        const at::Tensor wanted = shard_of(expected.grads.at(name), spec_of(spec_, name), placement);
        EXPECT_LT(gradient_error(name, grad, wanted, model.grads()), 1e-5) << name;
        if (spec_of(spec_, name).split_dim < 0) continue;
        const at::Tensor padding = padding_of(grad, spec_of(spec_, name), placement);
        padded += padding.numel();
        EXPECT_EQ(padding.abs().sum().item<float>(), 0.0f) << name;
      }
      EXPECT_EQ(padded > 0, group.rank() + 1 == group.size());
    }
    EXPECT_NEAR(Model(spec_, whole, Precision::f32, placement).evaluate(pass), expected.loss, 1e-6 * expected.loss);
  });
}

TEST_P(Padded, GivesTheLogitsOfRealTokensAlone) {
  const auto whole = whole_parameters(spec_, 7);
  const Batch all{{{"tokens", random_batch(dims_, 2, 3).at("tokens")}}};
  const at::Tensor expected = Model(spec_, whole, Precision::f32).logits(pass_of(all, Precision::f32));
  in_ranks(degree_, [&](const comm::Group& group) {
    const at::Tensor logits = Model(spec_, whole, Precision::f32, {group.rank(), group.size()}).logits(pass_of(all, Precision::f32, group));
    ASSERT_EQ(logits.sizes(), at::IntArrayRef({2, dims_.seq, dims_.vocab}));
    EXPECT_LT(relative_error(logits, expected), 1e-5);
    EXPECT_TRUE(at::equal(logits.argmax(-1), expected.argmax(-1)));
  });
}

Dims padded_bert() { return {.hidden = 48, .layers = 2, .heads = 6, .kv_heads = 6, .ffn = 97, .vocab = 259, .seq = 40, .bert = true}; }

Dims padded(bool tied, bool gpt, bool gated) {
  return {
      .hidden = 48, .layers = 2, .heads = 6, .kv_heads = 6, .ffn = 97, .vocab = 259, .seq = 40, .tied = tied, .gpt = gpt, .gated = gated};
}

INSTANTIATE_TEST_SUITE_P(Degrees, Padded,
                         testing::Combine(testing::Values(2, 3, 6),
                                          testing::Values(padded(false, false, false), padded(true, false, false),
                                                          padded(true, true, false), padded(false, true, true), padded_bert())),
                         [](const auto& info) {
                           const Dims& dims = std::get<1>(info.param);
                           return "tp" + std::to_string(std::get<0>(info.param)) +
                                  (dims.bert  ? "bert"
                                   : dims.gpt ? "gpt"
                                              : "") +
                                  (dims.gated ? "gated" : "") + (dims.tied ? "tied" : "");
                         });

INSTANTIATE_TEST_SUITE_P(Degrees, TensorParallel,
                         testing::Combine(testing::Values(2, 4), testing::Values(Precision::f32, Precision::bf16),
                                          testing::Values(kPlain, kEverything, kGpt, kGptWithAllElse, kBert, kSplit, kLong)),
                         [](const auto& info) {
                           const Dims& dims = std::get<2>(info.param);
                           return "tp" + std::to_string(std::get<0>(info.param)) + model::name_of(std::get<1>(info.param)) +
                                  (dims.split      ? "split"
                                   : dims.bert     ? "bert"
                                   : dims.gpt      ? dims.gated ? "gptwithallelse" : "gpt"
                                   : dims.qk_norm  ? "everything"
                                   : dims.seq > 40 ? "long"
                                                   : "plain");
                         });

}  // namespace
}  // namespace tessera::nn::test
