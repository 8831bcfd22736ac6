// Context-parallel ranks as processes, each with its part of every sequence, against one rank that holds whole sequences.
#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <utility>

#include "nn/context_parallel.hpp"
#include "nn/decoder_helper.hpp"
#include "nn/memory_helper.hpp"
#include "nn/ranks_helper.hpp"
#include "nn/sequence.hpp"

namespace tessera::nn::test {
namespace {

using model::ContextKind;
using model::Precision;

TEST(SequenceCut, GivesEachRankAChunkOfEitherHalf) {
  const at::Tensor whole = at::arange(24, at::kLong).view({2, 12});
  EXPECT_TRUE((SequenceCut{3, 0}.positions(12, at::kCPU).equal(at::tensor({0, 1, 10, 11}, at::kLong))));
  EXPECT_TRUE((SequenceCut{3, 2}.positions(12, at::kCPU).equal(at::tensor({4, 5, 6, 7}, at::kLong))));
  EXPECT_TRUE((SequenceCut{3, 1}.own(whole)[1].equal(at::tensor({14, 15, 20, 21}, at::kLong))));
  for (const int size : {1, 2, 3}) {
    const SequenceCut cut{size, 0};
    EXPECT_TRUE(cut.whole(cut.parts(whole)).equal(whole)) << size;
  }
  EXPECT_ANY_THROW((SequenceCut{4, 0}.own(whole)));
}

// What keeps documents apart: each token's position in its own.
at::Tensor documents(std::int64_t samples, std::int64_t seq) {
  at::Tensor positions = at::empty({samples, seq}, at::kLong);
  for (std::int64_t i = 0; i < samples; ++i) {
    std::int64_t position = 0;
    for (std::int64_t j = 0; j < seq; ++j) {
      if ((j + 3 * i) % 13 == 12 || (j + i) % 29 == 3) position = 0;
      positions[i][j] = position++;
    }
  }
  return positions;
}

const Dims kPlain{.hidden = 48, .layers = 2, .heads = 12, .kv_heads = 4, .ffn = 96, .vocab = 160, .seq = 48, .head_dim = 8};
const Dims kEverything{.hidden = 48,
                       .layers = 2,
                       .heads = 12,
                       .kv_heads = 6,
                       .ffn = 96,
                       .vocab = 160,
                       .seq = 48,
                       .head_dim = 12,
                       .window = 17,
                       .qkv_bias = true,
                       .qk_norm = true,
                       .scaled = true};

const Dims kGpt{.hidden = 48,
                .layers = 2,
                .heads = 12,
                .kv_heads = 12,
                .ffn = 96,
                .vocab = 160,
                .seq = 48,
                .dropout = 0.2,
                .gpt = true,
                .embedding_norm = true};
const Dims kBert{
    .hidden = 48, .layers = 2, .heads = 12, .kv_heads = 12, .ffn = 96, .vocab = 160, .seq = 48, .bert = true, .token_types = true};
const Dims kSplit{.hidden = 48,
                  .layers = 1,
                  .heads = 12,
                  .kv_heads = 12,
                  .ffn = 96,
                  .vocab = 160,
                  .seq = 48,
                  .dropout = 0.2,
                  .bert = true,
                  .split = true};
const Dims kDroppingBert{
    .hidden = 48, .layers = 1, .heads = 12, .kv_heads = 12, .ffn = 96, .vocab = 160, .seq = 48, .dropout = 0.2, .bert = true};
// Masks under a window.
const Dims kDropped{
    .hidden = 48, .layers = 1, .heads = 12, .kv_heads = 4, .ffn = 96, .vocab = 160, .seq = 48, .head_dim = 8, .window = 17, .dropout = 0.2};

class ContextParallel : public testing::TestWithParam<std::tuple<int, ContextKind, Precision>> {
 protected:
  const int degree_ = std::get<0>(GetParam());
  const ContextKind kind_ = std::get<1>(GetParam());
  const Precision precision_ = std::get<2>(GetParam());

  Pass pass_of(const Batch& batch) const {
    Pass pass;
    pass.batch = &batch;
    pass.precision = precision_;
    pass.loss_scale = 0.01;
    pass.drops = true;
    return pass;
  }
};

TEST_P(ContextParallel, AddsUpToTheLossAndGradientsOfOneRank) {
  // In 16 bits, each part of an attention is rounded before they are merged.
  const double tolerance = precision_ == Precision::f32 ? 1e-5 : 5e-2;
  for (const Dims& dims : {kPlain, kEverything, kGpt, kBert, kDroppingBert, kSplit, kDropped})
    for (const bool apart : {false, true}) {
      const model::ModelSpec spec = decoder(dims);
      const auto whole = whole_parameters(spec, 7);
      Batch batch = random_batch(dims, 3, 3);
      if (apart) batch.tensors["positions"] = documents(3, dims.seq);
      Model one(spec, whole, precision_);
      const Model::Step expected = one.step(pass_of(batch));
      in_ranks(degree_, [&](const comm::Group& group) {
        const Batch own = own_part(batch, {group.size(), group.rank()});
        for (const auto& [recompute, selective] : {std::pair{false, false}, {true, false}, {false, true}}) {
          Model model(spec, whole, precision_);
          Pass pass = pass_of(own);
          pass.context_group = group;
          pass.context = kind_;
          pass.recompute_attention = selective;
          const Model::Step step = model.step(pass, recompute);
          double sums[] = {step.loss, static_cast<double>(step.tokens)};
          group.all_reduce(sums, 2, comm::DataType::f64).wait();
          EXPECT_NEAR(sums[0], expected.loss, (precision_ == Precision::f32 ? 1e-5 : 5e-3) * expected.loss);
          EXPECT_EQ(sums[1], static_cast<double>(expected.tokens));
          for (const auto& [name, grad] : model.grads()) {
            const at::Tensor sum = grad.clone();
            group.all_reduce(sum.data_ptr(), static_cast<std::size_t>(sum.numel()), comm::DataType::f32).wait();
            const at::Tensor& wanted = one.grads().at(name);
            EXPECT_LT(gradient_error(name, sum, wanted, one.grads()), (cancels(name) ? 2 : 1) * tolerance)
                << name
                << (dims.qk_norm       ? ", everything"
                    : dims.gpt         ? ", gpt"
                    : dims.bert        ? ", bert"
                    : dims.dropout > 0 ? ", dropped"
                                       : ", plain")
                << (apart ? ", documents apart" : "");
          }
        }
      });
    }
}

// A block's exchanges and what it keeps are what the planner counts with.
TEST_P(ContextParallel, ExchangesAndKeepsWhatTheCostSays) {
  in_ranks(degree_, [&](const comm::Group& group) {
    for (const auto& [dims, recompute] : {std::pair{kPlain, model::Recompute::none},
                                          {kEverything, model::Recompute::none},
                                          {kPlain, model::Recompute::selective},
                                          {kGpt, model::Recompute::none},
                                          {kGpt, model::Recompute::selective},
                                          {kBert, model::Recompute::none},
                                          {kBert, model::Recompute::selective}}) {
      const model::ModelSpec spec = decoder(dims);
      const auto whole = whole_parameters(spec, 7);
      const Batch own = own_part(random_batch(dims, 3, 3), {group.size(), group.rank()});
      Model model(spec, whole, precision_);
      Pass pass = pass_of(own);
      pass.context_group = group;
      pass.context = kind_;
      pass.recompute_attention = recompute == model::Recompute::selective;
      std::vector<Interval> exchanges;
      pass.exchanges = &exchanges;
      std::vector<Saved> saved(model.size());
      Tensors tensors;
      const auto expect = [&](const model::BlockInstance& block, bool forward) {
        const model::BlockCost cost = model::cost_of(
            *block.spec,
            {.micro_batch_size = 3, .precision = precision_, .recompute = recompute, .context_parallel = degree_, .context = kind_});
        int messages = 0;
        if (!forward)
          for (const model::Exchange& one : cost.recomputed_exchanges) messages += one.messages;
        for (const model::Exchange& one : forward ? cost.forward_exchanges : cost.backward_exchanges) messages += one.messages;
        EXPECT_EQ(std::ssize(std::exchange(exchanges, {})), messages) << block.name() << (forward ? " forward" : " backward");
        if (!forward) return;
        std::int64_t kept = 0;
        for (const at::Tensor& tensor : saved[static_cast<std::size_t>(block.index)].tensors)
          kept += tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
        EXPECT_EQ(kept, cost.saved.value) << block.name();
        if (block.index + 1 < spec.block_count()) {
          EXPECT_EQ(static_cast<std::int64_t>(tensors[0].nbytes()), cost.output.value);
        }
      };
      const std::vector<model::BlockInstance> blocks = spec.blocks();
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

TEST(ContextParallelMemory, PeakOfAStepIsWithinTenPercentOfWhatIsAllocated) {
  const Dims dims{.hidden = 256, .layers = 4, .heads = 4, .kv_heads = 4, .ffn = 704, .vocab = 1000, .seq = 256};
  const model::ModelSpec spec = decoder(dims);
  const auto whole = whole_parameters(spec, 1);
  const Batch batch = random_batch(dims, 4, 1);
  for (const ContextKind kind : {ContextKind::ring, ContextKind::ulysses})
    for (const model::Recompute recompute : {model::Recompute::none, model::Recompute::selective, model::Recompute::full}) {
      const model::BlockShard shard{.micro_batch_size = 4, .recompute = recompute, .context_parallel = 4, .context = kind};
      in_ranks(4, [&](const comm::Group& group) {
        const Batch own = own_part(batch, {group.size(), group.rank()});
        Model model(spec, whole, Precision::f32);
        Pass pass;
        pass.batch = &own;
        pass.context_group = group;
        pass.context = kind;
        pass.recompute_attention = recompute == model::Recompute::selective;
        auto meter = std::make_shared<MemoryMeter>();
        {
          c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
          model.step(pass, recompute == model::Recompute::full);
        }
        const auto expected = static_cast<double>(expected_peak(spec, shard));
        EXPECT_NEAR(static_cast<double>(meter->peak()), expected, 0.1 * expected)
            << model::name_of(recompute) << (kind == ContextKind::ring ? ", ring" : ", ulysses");
      });
    }
}

// Of attention alone, whatever the number of key-value heads.
TEST_P(ContextParallel, AttendsAsOneRankDoes) {
  const at::ScalarType type = precision_ == Precision::f32 ? at::kFloat : at::kBFloat16;
  const double tolerance = precision_ == Precision::f32 ? 1e-5 : 2e-2;
  const auto far = [](const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); };
  struct OfOneRank {
    ScoreDropout dropout;
    kernels::AttentionShape shape;
    at::Tensor qkv = {}, out_grad = {}, out = {}, grads = {};
    std::string which = {};
  };
  for (const std::int64_t kv_heads : {1, 2, 3, 12}) {
    std::vector<OfOneRank> cases;
    for (const std::int64_t window : {0, 1, 20, 100})
      for (const auto& [apart, dropped] : {std::pair{false, 0.0}, {true, 0.0}, {false, 0.3}, {true, 0.3}}) {
        OfOneRank one{{dropped, {3, 4}, 2}, {2, 96, 12, kv_heads, 16, window}};
        one.which = text(kv_heads, " key-value heads, window ", window, apart ? ", documents apart" : "", ", dropout ", dropped);
        if (apart) one.shape.segments = kernels::document_segments(documents(2, 96));
        at::manual_seed(5);
        one.qkv = at::randn({2 * 96, (12 + 2 * kv_heads) * 16}).to(type);
        one.out_grad = at::randn({2 * 96, 12 * 16}).to(type);
        one.out = at::empty_like(one.out_grad), one.grads = one.qkv.clone();
        at::Tensor lse = at::empty({2, 12, 96});
        attention(one.qkv, one.shape, one.dropout, {}, one.out, lse);
        attention_backward(one.out_grad, one.out, lse, one.shape, one.dropout, {}, one.grads);
        cases.push_back(std::move(one));
      }
    in_ranks(degree_, [&](const comm::Group& group) {
      const SequenceCut cut{group.size(), group.rank()};
      const auto own = [&](const at::Tensor& rows) {
        return cut.own(rows.view({2, 96, -1})).reshape({2 * 96 / group.size(), -1}).contiguous();
      };
      Pass pass;
      pass.context_group = group;
      pass.context = kind_;
      for (const OfOneRank& one : cases) {
        kernels::AttentionShape part = one.shape;
        part.seq /= group.size();
        at::Tensor own_qkv = own(one.qkv), own_out = own(at::zeros_like(one.out));
        at::Tensor own_lse = at::empty(lse_sizes(part, pass), at::kFloat);
        attention(own_qkv, part, one.dropout, pass, own_out, own_lse);
        attention_backward(own(one.out_grad), own_out, own_lse, part, one.dropout, pass, own_qkv);
        EXPECT_LT(far(own_out, own(one.out)), tolerance) << one.which;
        EXPECT_LT(far(own_qkv, own(one.grads)), tolerance) << one.which;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Degrees, ContextParallel,
                         testing::Combine(testing::Values(2, 3, 4), testing::Values(ContextKind::ring, ContextKind::ulysses),
                                          testing::Values(Precision::f32, Precision::bf16)),
                         [](const auto& info) {
                           return "cp" + std::to_string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) == ContextKind::ring ? "ring" : "ulysses") +
                                  model::name_of(std::get<2>(info.param));
                         });

}  // namespace
}  // namespace tessera::nn::test
