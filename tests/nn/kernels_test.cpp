// The kernels against what they should compute, on the shapes that tiles and panels get wrong first.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <cmath>

#include "base/error.hpp"
#include "base/random.hpp"
#include "nn/kernels/attention.hpp"
#include "nn/kernels/bias.hpp"
#include "nn/kernels/cross_entropy.hpp"
#include "nn/kernels/element.hpp"
#include "nn/kernels/gemm.hpp"
#include "nn/kernels/gemm_avx512.hpp"
#include "nn/kernels/norm.hpp"
#include "nn/kernels/swiglu.hpp"

namespace tessera::nn::kernels {
namespace {

std::int64_t pick(Random& random, std::initializer_list<std::int64_t> from) { return *(from.begin() + random.below(from.size())); }

// [rows, columns], stored by rows or by columns, perhaps as a slice of something wider.
at::Tensor matrix(Random& random, std::int64_t rows, std::int64_t columns, at::ScalarType type) {
  const bool by_columns = random.below(2) == 1;
  const std::int64_t slack = pick(random, {0, 0, 1, 8});
  const std::int64_t lines = by_columns ? columns : rows;
  const std::int64_t length = by_columns ? rows : columns;
  const at::Tensor stored = at::randn({lines, length + 2 * slack}).to(type).narrow(1, slack, length);
  return by_columns ? stored.t() : stored;
}

TEST(Gemm, IsThePlainProductForAnyShapeLayoutAndType) {
  at::manual_seed(1);
  Random random(1);
  for (int round = 0; round < 400; ++round) {
    const std::int64_t m = pick(random, {1, 2, 8, 13, 14, 15, 16, 27, 32, 61, 200});
    const std::int64_t n = pick(random, {1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 190, 400});
    const std::int64_t k = pick(random, {1, 2, 3, 16, 17, 33, 64, 100, 511, 512, 1030, 1300});
    const at::ScalarType type = random.below(2) == 1 ? at::kBFloat16 : at::kFloat;
    const at::ScalarType result_type = random.below(2) == 1 ? at::kFloat : type;
    const bool accumulate = random.below(2) == 1;
    const at::Tensor a = matrix(random, m, k, type);
    const at::Tensor b = matrix(random, k, n, type);
    const at::Tensor around = at::randn({m, n + 40}).to(result_type);
    const at::Tensor before = around.clone();
    const at::Tensor c = around.narrow(1, 3, n);
    at::Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    if (accumulate) expected = expected + c.to(at::kDouble);
    gemm(a, b, c, accumulate);
    // Each result against the size of the terms that were added; bf16 where ATen or the result rounds to it.
    const at::Tensor size = at::mm(a.abs().to(at::kDouble), b.abs().to(at::kDouble)) + 1.0;
    const bool rounds = type == at::kBFloat16 && (result_type == at::kBFloat16 || m < 8);
    const double error = ((c.to(at::kDouble) - expected).abs() / size).max().item<double>();
    EXPECT_LT(error, rounds ? 1e-2 : 2e-6) << m << "x" << n << "x" << k << " " << type << " into " << result_type;
    EXPECT_TRUE(at::equal(around.narrow(1, 0, 3), before.narrow(1, 0, 3))) << "wrote before the result";
    EXPECT_TRUE(at::equal(around.narrow(1, 3 + n, 37), before.narrow(1, 3 + n, 37))) << "wrote behind the result";
  }
}

TEST(Gemm, DoesNotDependOnHowManyRowsAreMultipliedTogether) {
  if (!has_avx512()) GTEST_SKIP() << "ATen computes products on this CPU, and promises no such thing";
  at::manual_seed(1);
  const at::Tensor a = at::randn({2000, 700});
  const at::Tensor b = at::randn({90, 700}).t();
  at::Tensor whole = at::empty({2000, 90});
  gemm(a, b, whole);
  for (const std::int64_t rows : {5, 14, 20, 32, 33}) {
    at::Tensor part = at::empty({rows, 90});
    gemm(a.narrow(0, 1780, rows), b, part);
    EXPECT_TRUE(at::equal(part, whole.narrow(0, 1780, rows))) << rows << " rows";
  }
}

struct AttentionResult {
  at::Tensor out, lse, grads;
};

// Attention and its gradient by their formulas, in double. What `apart` [batch, 1, seq, seq] says is not seen besides the future.
AttentionResult attention_by_definition(const at::Tensor& qkv, const at::Tensor& out_grad, const AttentionShape& s,
                                        const at::Tensor& apart = {}) {
  const auto heads_of = [&](const at::Tensor& rows, std::int64_t first, std::int64_t count) {
    return rows.to(at::kDouble).narrow(1, first * s.head_dim, count * s.head_dim).view({s.batch, s.seq, count, s.head_dim}).transpose(1, 2);
  };
  const std::int64_t shared = s.heads / s.kv_heads;
  const at::Tensor q = heads_of(qkv, 0, s.heads), dout = heads_of(out_grad, 0, s.heads);
  const at::Tensor k = heads_of(qkv, s.heads, s.kv_heads).repeat_interleave(shared, 1);
  const at::Tensor v = heads_of(qkv, s.heads + s.kv_heads, s.kv_heads).repeat_interleave(shared, 1);
  const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  const at::Tensor all = at::ones({s.seq, s.seq}, at::kBool);
  at::Tensor unseen = s.window > 0 ? all.triu(1).logical_or(all.tril(-s.window)) : s.causal ? all.triu(1) : at::zeros_like(all);
  if (apart.defined()) unseen = unseen.logical_or(apart);
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)).mul(scale).masked_fill(unseen, -INFINITY);
  const at::Tensor weights = at::softmax(scores, 3);
  const at::Tensor weights_grad = at::matmul(dout, v.transpose(2, 3));
  const at::Tensor scores_grad = weights * (weights_grad - (weights_grad * weights).sum(3, true));
  const auto rows_of = [&](const at::Tensor& heads) { return heads.transpose(1, 2).reshape({s.batch * s.seq, -1}); };
  const auto summed = [&](const at::Tensor& heads) { return heads.view({s.batch, s.kv_heads, shared, s.seq, s.head_dim}).sum(2); };
  return {rows_of(at::matmul(weights, v)), at::logsumexp(scores, {3}),
          at::cat({rows_of(at::matmul(scores_grad, k).mul(scale)), rows_of(summed(at::matmul(scores_grad.transpose(2, 3), q).mul(scale))),
                   rows_of(summed(at::matmul(weights.transpose(2, 3), dout)))},
                  1)};
}

// Both our kernels and what stands in for them on processors without AVX-512: there `attention` is `attention_plain`.
TEST(Attention, IsWhatItsDefinitionSaysForAnyShape) {
  at::manual_seed(2);
  Random random(2);
  const auto far = [](const at::Tensor& a, const at::Tensor& b) { return (a.to(at::kDouble) - b).abs().max().item<double>(); };
  for (int round = 0; round < 120; ++round) {
    const std::int64_t kv_heads = pick(random, {1, 2, 3});
    AttentionShape shape{pick(random, {1, 2}),
                         pick(random, {1, 2, 13, 14, 15, 32, 33, 57, 100, 300}),
                         kv_heads * pick(random, {1, 2, 4}),
                         kv_heads,
                         pick(random, {2, 8, 16, 32, 40, 64, 80, 128}),
                         round < 60 ? 0 : pick(random, {1, 2, 15, 31, 32, 33, 64, 99, 100, 299, 1000})};
    shape.causal = shape.window > 0 || round % 2 == 0;
    const at::ScalarType type = random.below(2) == 1 ? at::kBFloat16 : at::kFloat;
    const double tolerance = type == at::kFloat ? 2e-5 : 4e-2;
    const std::int64_t rows = shape.batch * shape.seq;
    const std::int64_t width = shape.heads * shape.head_dim;
    const at::Tensor qkv = at::randn({rows, width + 2 * kv_heads * shape.head_dim}).to(type);
    const at::Tensor out_grad = at::randn({rows, width}).to(type);
    const AttentionResult right = attention_by_definition(qkv, out_grad, shape);
    for (const bool plain : {false, true}) {
      at::Tensor out = at::empty({rows, width}, type);
      at::Tensor lse = at::empty({shape.batch, shape.heads, shape.seq});
      at::Tensor grads = qkv.clone();
      (plain ? attention_plain : attention)(qkv, shape, out, lse);
      (plain ? attention_backward_plain : attention_backward)(out_grad, out, lse, shape, grads);
      const std::string which = text(plain ? "plain " : "ours ", type, " seq ", shape.seq, " head_dim ", shape.head_dim, " window ",
                                     shape.window, shape.causal ? "" : " not causal");
      EXPECT_LT(far(out, right.out), tolerance) << which;
      // ATen takes a coarser exponential for bf16.
      EXPECT_LT(far(lse, right.lse), type == at::kFloat ? 2e-5 : 2e-4) << which;
      EXPECT_LT(far(grads, right.grads), tolerance * right.grads.abs().max().item<double>()) << which;
    }
  }
}

// Some queries of a sequence against some of its keys, as ranks that hold parts of it compute them: merged, they are the whole.
TEST(Attention, AcrossPartsOfASequenceAddsUpToTheWhole) {
  at::manual_seed(4);
  Random random(4);
  const auto far = [](const at::Tensor& a, const at::Tensor& b) { return (a.to(at::kDouble) - b).abs().max().item<double>(); };
  for (int round = 0; round < 60; ++round) {
    const std::int64_t kv_heads = pick(random, {1, 2});
    const std::int64_t first = pick(random, {1, 14, 32, 57, 100});  // of two parts of the keys
    AttentionShape shape{pick(random, {1, 2}), first + pick(random, {1, 13, 40, 150}), kv_heads * pick(random, {1, 3}), kv_heads,
                         pick(random, {8, 32, 40})};
    const std::int64_t width = shape.heads * shape.head_dim, kv_width = 2 * kv_heads * shape.head_dim;
    const std::int64_t queries = shape.seq - first;
    // All of the queries of the second part see some of the first.
    shape.window = round % 3 == 0 ? queries + 1 + static_cast<std::int64_t>(random.below(20)) : 0;
    const at::Tensor qkv = at::randn({shape.batch * shape.seq, width + kv_width});
    const at::Tensor out_grad = at::randn({shape.batch * shape.seq, width});
    const AttentionResult right = attention_by_definition(qkv, out_grad, shape);
    const auto rows = [&](const at::Tensor& of, std::int64_t begin, std::int64_t count) {
      return of.view({shape.batch, shape.seq, -1}).narrow(1, begin, count).reshape({shape.batch * count, -1}).clone();
    };
    const at::Tensor expected_out = rows(right.out, first, queries);
    const at::Tensor expected_lse = right.lse.narrow(2, first, queries);
    for (const bool plain : {false, true}) {
      at::Tensor outs[2], lses[2], query_grads, key_grads[2];
      for (const int part : {0, 1}) {
        const std::int64_t keys = part == 0 ? first : queries;
        const CrossShape cross{shape.batch, queries, keys, shape.heads, kv_heads, shape.head_dim, part == 0 ? first : 0, shape.window};
        at::Tensor q = rows(qkv.narrow(1, 0, width), first, queries);
        at::Tensor kv = rows(qkv.narrow(1, width, kv_width), part == 0 ? 0 : first, keys);
        outs[part] = at::empty({shape.batch * queries, width});
        lses[part] = at::empty({shape.batch, shape.heads, queries});
        (plain ? attention_across_plain : attention_across)(q, kv, cross, outs[part], lses[part]);
        (plain ? attention_across_backward_plain : attention_across_backward)(rows(out_grad, first, queries), expected_out.to(at::kFloat),
                                                                              expected_lse.to(at::kFloat).contiguous(), cross, q, kv);
        query_grads = part == 0 ? q : query_grads + q;
        key_grads[part] = kv;
      }
      const at::Tensor lse = at::logaddexp(lses[0], lses[1]);
      const auto weighed = [&](int part) {
        return outs[part].view({shape.batch, queries, shape.heads, -1}) * (lses[part] - lse).exp().transpose(1, 2).unsqueeze(3);
      };
      const std::string which = text(plain ? "plain " : "ours ", first, " + ", queries, " keys, window ", shape.window);
      EXPECT_LT(far((weighed(0) + weighed(1)).view({shape.batch * queries, width}), expected_out), 2e-5) << which;
      EXPECT_LT(far(lse, expected_lse), 2e-5) << which;
      const double tolerance = 2e-5 * std::max(1.0, right.grads.abs().max().item<double>());
      EXPECT_LT(far(query_grads, rows(right.grads.narrow(1, 0, width), first, queries)), tolerance) << which;
      // Nothing but these queries sees the second part.
      EXPECT_LT(far(key_grads[1], rows(right.grads.narrow(1, width, kv_width), first, queries)), tolerance) << which;
    }
  }
}

TEST(Attention, ReadsNothingOutsideOfItsWindow) {
  at::manual_seed(3);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const AttentionShape shape{1, 200, 2, 1, 32, 70};
    at::Tensor qkv = at::randn({200, 4 * 32}).to(type);
    const auto run = [&] {
      at::Tensor out = at::empty({200, 64}, type);
      at::Tensor lse = at::empty({1, 2, 200});
      attention(qkv, shape, out, lse);
      return out;
    };
    const at::Tensor before = run();
    qkv.narrow(0, 0, 100).fill_(1e3);
    const at::Tensor after = run();
    EXPECT_TRUE(at::equal(before.narrow(0, 170, 30), after.narrow(0, 170, 30))) << type;
    EXPECT_FALSE(at::equal(before.narrow(0, 168, 1), after.narrow(0, 168, 1))) << type;
  }
}

TEST(Attention, StaysWithinDocuments) {
  at::manual_seed(3);
  Random random(3);
  const auto far = [](const at::Tensor& a, const at::Tensor& b) { return (a.to(at::kDouble) - b).abs().max().item<double>(); };
  for (int round = 0; round < 40; ++round) {
    const std::int64_t kv_heads = pick(random, {1, 2});
    AttentionShape shape{pick(random, {1, 3}), pick(random, {1, 14, 33, 100, 200}), kv_heads * pick(random, {1, 2}), kv_heads,
                         pick(random, {8, 32, 64})};
    shape.window = pick(random, {0, 0, 5, 40});
    shape.causal = shape.window > 0 || round % 2 == 0;
    const std::int64_t often = pick(random, {1, 3, 40, 500});  // documents of about so many tokens
    at::Tensor positions = at::zeros({shape.batch, shape.seq}, at::kLong);
    at::Tensor documents = at::zeros({shape.batch, shape.seq}, at::kLong);
    for (std::int64_t i = 0; i < shape.batch; ++i)
      for (std::int64_t j = 1; j < shape.seq; ++j) {
        const bool begins = random.below(static_cast<std::uint64_t>(often)) == 0;
        positions[i][j] = begins ? 0 : positions[i][j - 1].item<std::int64_t>() + 1;
        documents[i][j] = documents[i][j - 1].item<std::int64_t>() + (begins ? 1 : 0);
      }
    shape.segments = document_segments(positions);
    const at::Tensor apart = documents.unsqueeze(2).ne(documents.unsqueeze(1)).unsqueeze(1);
    const at::ScalarType type = random.below(2) == 1 ? at::kBFloat16 : at::kFloat;
    const double tolerance = type == at::kFloat ? 2e-5 : 4e-2;
    const std::int64_t rows = shape.batch * shape.seq, width = shape.heads * shape.head_dim;
    const at::Tensor qkv = at::randn({rows, width + 2 * kv_heads * shape.head_dim}).to(type);
    const at::Tensor out_grad = at::randn({rows, width}).to(type);
    const AttentionResult right = attention_by_definition(qkv, out_grad, shape, apart);
    for (const bool plain : {false, true}) {
      at::Tensor out = at::empty({rows, width}, type);
      at::Tensor lse = at::empty({shape.batch, shape.heads, shape.seq});
      at::Tensor grads = qkv.clone();
      (plain ? attention_plain : attention)(qkv, shape, out, lse);
      (plain ? attention_backward_plain : attention_backward)(out_grad, out, lse, shape, grads);
      const std::string which = text(plain ? "plain " : "ours ", type, " seq ", shape.seq, " in ", shape.segments.size(), " documents",
                                     shape.causal ? "" : ", not causal");
      EXPECT_LT(far(out, right.out), tolerance) << which;
      EXPECT_LT(far(lse, right.lse), type == at::kFloat ? 2e-5 : 2e-4) << which;
      EXPECT_LT(far(grads, right.grads), tolerance * std::max(1.0, right.grads.abs().max().item<double>())) << which;
    }
  }
}

TEST(Attention, StandsLargeScores) {
  const AttentionShape shape{1, 20, 1, 1, 16};
  const at::Tensor qkv = at::randn({20, 48}) * 100;
  at::Tensor out = at::empty({20, 16});
  at::Tensor lse = at::empty({1, 1, 20});
  attention(qkv, shape, out, lse);
  EXPECT_TRUE(at::isfinite(out).all().item<bool>());
  EXPECT_TRUE(at::isfinite(lse).all().item<bool>());
}

TEST(FastExp, IsWithinThreeInTenMillion) {
  for (float x = -87.0f; x < 88.0f; x += 0.0173f) {
    EXPECT_NEAR(fast_exp(x) / std::exp(static_cast<double>(x)), 1.0, 3e-7) << x;
  }
  EXPECT_EQ(fast_exp(-INFINITY), 0.0f);
  EXPECT_EQ(fast_exp(-1000.0f), 0.0f);
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_TRUE(std::isnan(fast_exp(NAN)));
}

TEST(CrossEntropy, StandsLargeLogitsAndRowsWithoutTarget) {
  at::Tensor logits = at::tensor({1e4f, -1e4f, 0.0f, 3.0f, 1.0f, 2.0f}).view({2, 3});
  const at::Tensor targets = at::tensor({1, -1}, at::kLong);
  at::Tensor maximum = at::empty({2});
  at::Tensor target_logit = at::empty({2});
  at::Tensor sum = at::empty({2});
  at::Tensor gradient = at::empty({2, 3});
  cross_entropy_maximum(logits, targets, 0, maximum, target_logit);
  cross_entropy_exponentials(logits, maximum, sum);
  LossSum total(logits);
  add_losses(targets, maximum, sum, target_logit, total);
  cross_entropy_gradient(logits, targets, 0, sum, 1.0, gradient);
  EXPECT_EQ(total.tokens.item<std::int64_t>(), 1);
  EXPECT_NEAR(total.loss.item<double>(), 2e4, 1e-2);
  EXPECT_TRUE(at::equal(gradient, at::tensor({1.0f, -1.0f, 0.0f, 0.0f, 0.0f, 0.0f}).view({2, 3})));
}

TEST(HeadNorms, AreRmsNormOfEachHeadWithItsGradient) {
  at::manual_seed(4);
  Random random(4);
  for (int round = 0; round < 40; ++round) {
    const at::ScalarType type = random.below(2) == 1 ? at::kBFloat16 : at::kFloat;
    const HeadShape shape{pick(random, {1, 2, 6}), pick(random, {1, 2}), pick(random, {2, 16, 24, 64, 128})};
    const std::int64_t rows = pick(random, {1, 7, 128, 129, 300});
    const std::int64_t normed = (shape.heads + shape.kv_heads) * shape.head_dim;
    const std::int64_t width = normed + shape.kv_heads * shape.head_dim;
    const at::Tensor qkv = at::randn({rows, width}).to(type);
    const at::Tensor weights = at::randn({2, shape.head_dim}).to(type);
    const at::Tensor grad = at::randn({rows, width}).to(type);

    at::Tensor y = at::empty_like(qkv);
    rms_norm_heads(qkv, shape, weights[0], weights[1], 1e-6, y);
    at::Tensor dx = grad.clone();
    at::Tensor weight_grads = at::empty({2, shape.head_dim});
    rms_norm_heads_backward(qkv, shape, weights[0], weights[1], 1e-6, dx, weight_grads);

    const at::Tensor x = qkv.to(at::kDouble).set_requires_grad(true);
    const at::Tensor w = weights.to(at::kDouble).set_requires_grad(true);
    const at::Tensor heads = x.narrow(1, 0, normed).view({rows, -1, shape.head_dim});
    const at::Tensor scaled = heads * at::rsqrt(heads.pow(2).mean(-1, true) + 1e-6);
    const at::Tensor right =
        at::cat({(scaled.narrow(1, 0, shape.heads) * w[0]).reshape({rows, -1}),
                 (scaled.narrow(1, shape.heads, shape.kv_heads) * w[1]).reshape({rows, -1}), x.narrow(1, normed, width - normed)},
                1);
    right.backward(grad.to(at::kDouble));
    const auto far = [](const at::Tensor& a, const at::Tensor& b) {
      return ((a.to(at::kDouble) - b).abs().max() / (b.abs().max() + 1)).item<double>();
    };
    const double tolerance = type == at::kFloat ? 1e-5 : 2e-2;
    const std::string which = text(type, " rows ", rows, " head_dim ", shape.head_dim);
    EXPECT_LT(far(y, right.detach()), tolerance) << which;
    EXPECT_LT(far(dx, x.grad()), tolerance) << which;
    EXPECT_LT(far(weight_grads, w.grad()), type == at::kFloat ? 1e-5 : 1e-4) << which;
    EXPECT_TRUE(at::equal(y.narrow(1, normed, width - normed), qkv.narrow(1, normed, width - normed))) << which;
  }
}

TEST(Bias, IsAddedToARowAndItsGradientIsTheSumOfRows) {
  at::manual_seed(5);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t rows : {1, 127, 128, 300}) {
      const at::Tensor around = at::randn({rows, 60}).to(type);
      const at::Tensor before = around.clone();
      const at::Tensor bias = at::randn({37}).to(type);
      add_bias(around.narrow(1, 11, 37), bias);
      EXPECT_TRUE(at::equal(around.narrow(1, 11, 37), before.narrow(1, 11, 37) + bias));
      EXPECT_TRUE(at::equal(around.narrow(1, 0, 11), before.narrow(1, 0, 11)));
      const at::Tensor grad = at::ones({37});
      bias_backward(before.narrow(1, 11, 37), grad);
      const at::Tensor right = before.narrow(1, 11, 37).to(at::kDouble).sum(0) + 1;
      EXPECT_LT((grad.to(at::kDouble) - right).abs().max().item<double>(), 1e-4) << type << " " << rows << " rows";
    }
  }
}

TEST(SwiGlu, StandsLargeGates) {
  at::Tensor gate_up = at::tensor({-500.0f, 500.0f, 2.0f, 2.0f}).view({1, 4});
  at::Tensor hidden = at::empty({1, 2});
  swiglu(gate_up, hidden);
  EXPECT_NEAR(hidden[0][0].item<float>(), 0.0f, 1e-30f);
  EXPECT_EQ(hidden[0][1].item<float>(), 1000.0f);
  hidden.fill_(1.0);
  swiglu_backward(gate_up, hidden);
  EXPECT_TRUE(at::isfinite(gate_up).all().item<bool>());
  EXPECT_TRUE(at::isfinite(hidden).all().item<bool>());
}

}  // namespace
}  // namespace tessera::nn::kernels
