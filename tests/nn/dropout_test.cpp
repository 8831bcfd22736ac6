#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "nn/dropout.hpp"
#include "nn/kernels/dropout.hpp"

namespace tessera::nn {
namespace {

// 1 where an element is kept.
at::Tensor kept(const at::Tensor& shape, double probability, const std::vector<std::uint64_t>& seeds) {
  at::Tensor out = at::ones_like(shape);
  kernels::dropout(out, probability, seeds, out);
  return out > 0;
}

TEST(Dropout, DropsItsShareAndScalesTheRest) {
  const at::Tensor x = at::randn({3, 257, 131});
  at::Tensor out = at::empty_like(x);
  kernels::dropout(x, 0.3, {1, 2, 3}, out);
  const at::Tensor mask = kept(x, 0.3, {1, 2, 3});
  EXPECT_NEAR(mask.to(at::kFloat).mean().item<double>(), 0.7, 0.005);
  EXPECT_TRUE(at::allclose(out, x * mask / 0.7, 1e-6));
  // By column and by row, too: no element follows its neighbours.
  EXPECT_GT(mask.to(at::kFloat).mean(1).min().item<double>(), 0.5);
  EXPECT_LT(mask.to(at::kFloat).mean(2).max().item<double>(), 0.9);
}

TEST(Dropout, OfASampleDependsOnItsSeedAlone) {
  const at::Tensor x = at::ones({4, 33, 7});
  const at::Tensor mask = kept(x, 0.5, {11, 12, 11, 13});
  EXPECT_TRUE(at::equal(mask[0], mask[2]));
  EXPECT_FALSE(at::equal(mask[0], mask[1]));
  EXPECT_TRUE(at::equal(kept(x.narrow(0, 1, 1).contiguous(), 0.5, {12})[0], mask[1]));
  EXPECT_TRUE(at::equal(kept(x.to(at::kBFloat16), 0.5, {11, 12, 11, 13}), mask));
}

TEST(Dropout, OfRowsIsThatOfTheSamplesThatTheyArePartsOf) {
  const at::Tensor x = at::randn({3, 20, 7});
  at::Tensor whole = at::empty_like(x);
  kernels::dropout(x, 0.4, {5, 6, 7}, whole);
  // Some rows, in another order.
  std::vector<kernels::RowPlace> places;
  std::vector<at::Tensor> from, expected;
  for (const auto& [sample, row] : {std::pair{2, 19}, {0, 0}, {1, 3}, {1, 4}, {0, 11}}) {
    places.push_back({static_cast<std::uint64_t>(5 + sample), 7 * row});
    from.push_back(x[sample][row]);
    expected.push_back(whole[sample][row]);
  }
  at::Tensor rows = at::stack(from);
  kernels::dropout_rows(rows, 0.4, places, rows);
  EXPECT_TRUE(at::equal(rows, at::stack(expected)));
}

TEST(Dropout, IsAnotherForEverySampleStepBlockAndPlace) {
  Batch batch;
  batch.seed = 5;
  Pass pass;
  pass.batch = &batch;
  pass.drops = true;
  const at::Tensor x = at::ones({2, 64});
  const at::Tensor first = dropout(x, 0.5, 0, pass);
  EXPECT_TRUE(at::equal(first, dropout(x, 0.5, 0, pass)));
  EXPECT_FALSE(at::equal(first, dropout(x, 0.5, 1, pass)));
  pass.block = 1;
  EXPECT_FALSE(at::equal(first, dropout(x, 0.5, 0, pass)));
  pass.block = 0;
  batch.seed = 6;
  EXPECT_FALSE(at::equal(first, dropout(x, 0.5, 0, pass)));
  batch.seed = 5;
  batch.first_sample = 1;
  // The second sample of before.
  EXPECT_TRUE(at::equal(first[1], dropout(x, 0.5, 0, pass)[0]));
  // The same in another place.
  batch.numbers = std::make_shared<const std::vector<std::int64_t>>(std::vector<std::int64_t>{7, 0, 1});
  EXPECT_TRUE(at::equal(first, dropout(x, 0.5, 0, pass)));
  pass.drops = false;
  EXPECT_TRUE(at::equal(x, dropout(x, 0.5, 0, pass)));
}

TEST(Dropout, PassesGradientsWhereItPassedValues) {
  const at::AutoGradMode mode(true);
  Batch batch;
  Pass pass;
  pass.batch = &batch;
  pass.drops = true;
  const at::Tensor x = at::randn({2, 5, 9}).transpose(1, 2).requires_grad_(true);
  const at::Tensor out = dropout(x * 2, 0.25, 0, pass);
  const at::Tensor grad = at::randn({2, 9, 5});
  const at::Tensor of_x = torch::autograd::grad({out}, {x}, {grad}).front();
  const at::Tensor passed = (out != 0).to(at::kFloat) / 0.75;
  EXPECT_TRUE(at::allclose(of_x, 2 * grad * passed, 1e-6));
}

}  // namespace
}  // namespace tessera::nn
