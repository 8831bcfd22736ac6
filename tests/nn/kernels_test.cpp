// The vectorised kernels against their plain versions, on the shapes that tiles and panels get wrong first.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <cmath>

#include "base/random.hpp"
#include "nn/kernels/attention.hpp"
#include "nn/kernels/cross_entropy.hpp"
#include "nn/kernels/element.hpp"
#include "nn/kernels/gemm.hpp"
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
    const std::int64_t m = pick(random, {1, 2, 8, 13, 14, 15, 28, 61, 200});
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
  at::manual_seed(1);
  const at::Tensor a = at::randn({100, 700});
  const at::Tensor b = at::randn({90, 700}).t();
  at::Tensor whole = at::empty({100, 90});
  at::Tensor part = at::empty({33, 90});
  gemm(a, b, whole);
  gemm(a.narrow(0, 20, 33), b, part);
  EXPECT_TRUE(at::equal(part, whole.narrow(0, 20, 33)));
}

TEST(Attention, IsThePlainAttentionForAnyShape) {
  at::manual_seed(2);
  Random random(2);
  for (int round = 0; round < 60; ++round) {
    const std::int64_t kv_heads = pick(random, {1, 2, 3});
    const AttentionShape shape{pick(random, {1, 2}), pick(random, {1, 2, 13, 14, 15, 32, 33, 57, 100, 300}),
                               kv_heads * pick(random, {1, 2, 4}), kv_heads, pick(random, {2, 8, 16, 32, 40, 64, 80, 128})};
    const at::ScalarType type = random.below(2) == 1 ? at::kBFloat16 : at::kFloat;
    const double tolerance = type == at::kFloat ? 2e-5 : 4e-2;
    const std::int64_t rows = shape.batch * shape.seq;
    const std::int64_t width = shape.heads * shape.head_dim;
    const at::Tensor qkv = at::randn({rows, width + 2 * kv_heads * shape.head_dim}).to(type);
    const at::Tensor out_grad = at::randn({rows, width}).to(type);
    at::Tensor out = at::empty({rows, width}, type);
    at::Tensor lse = at::empty({shape.batch, shape.heads, shape.seq});
    at::Tensor plain_out = at::empty_like(out);
    at::Tensor plain_lse = at::empty_like(lse);
    attention(qkv, shape, out, lse);
    attention_plain(qkv, shape, plain_out, plain_lse);
    const auto far = [](const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); };
    EXPECT_LT(far(out, plain_out), tolerance) << shape.seq << " " << shape.head_dim;
    // ATen takes a coarser exponential for bf16.
    EXPECT_LT(far(lse, plain_lse), type == at::kFloat ? 2e-5 : 2e-4) << shape.seq << " " << shape.head_dim;
    at::Tensor grads = qkv.clone();
    at::Tensor plain_grads = qkv.clone();
    attention_backward(out_grad, out, lse, shape, grads);
    attention_backward_plain(out_grad, plain_out, plain_lse, shape, plain_grads);
    EXPECT_LT(far(grads, plain_grads), tolerance * plain_grads.abs().max().item<double>()) << shape.seq << " " << shape.head_dim;
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
  LossSum total;
  add_losses(targets, maximum, sum, target_logit, total);
  cross_entropy_gradient(logits, targets, 0, sum, 1.0, gradient);
  EXPECT_EQ(total.tokens, 1);
  EXPECT_NEAR(total.loss, 2e4, 1e-2);
  EXPECT_TRUE(at::equal(gradient, at::tensor({1.0f, -1.0f, 0.0f, 0.0f, 0.0f, 0.0f}).view({2, 3})));
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
