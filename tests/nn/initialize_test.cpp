#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "nn/decoder_helper.hpp"

namespace tessera::nn::test {
namespace {

at::Tensor values(const model::ParameterSpec& spec, const char* name, std::uint64_t seed, BlockPlacement placement = {}) {
  at::Tensor value = at::empty(shard_shape(spec, placement), at::kFloat);
  initialize(spec, name, seed, placement, value);
  return value;
}

model::ParameterSpec matrix(std::vector<std::int64_t> shape, int split_dim) {
  model::ParameterSpec spec;
  spec.shape = std::move(shape);
  spec.split_dim = split_dim;
  return spec;
}

TEST(Initialize, ShardsAreCutsOfTheWhole) {
  for (const int split_dim : {-1, 0, 1, 2}) {
    const model::ParameterSpec spec = matrix({8, 12, 4}, split_dim);
    const at::Tensor whole = values(spec, "layer.3.w", 5);
    for (const int degree : {1, 2, 4}) {
      for (int rank = 0; rank < degree; ++rank) {
        const at::Tensor part = values(spec, "layer.3.w", 5, {rank, degree});
        EXPECT_TRUE(at::equal(part, shard_of(whole, spec, {rank, degree}))) << split_dim << " " << rank << "/" << degree;
      }
    }
  }
}

TEST(Initialize, DependsOnSeedAndName) {
  const model::ParameterSpec spec = matrix({64, 64}, 0);
  EXPECT_TRUE(at::equal(values(spec, "a", 1), values(spec, "a", 1)));
  EXPECT_FALSE(at::equal(values(spec, "a", 1), values(spec, "a", 2)));
  EXPECT_FALSE(at::equal(values(spec, "a", 1), values(spec, "b", 1)));
}

TEST(Initialize, IsNormal) {
  model::ParameterSpec spec = matrix({1000, 1000}, 0);
  spec.init.scale = 0.5;
  const at::Tensor x = values(spec, "a", 1).to(at::kDouble);
  EXPECT_NEAR(x.mean().item<double>(), 0.0, 0.002);
  EXPECT_NEAR(x.std().item<double>(), 0.5, 0.002);
  EXPECT_NEAR((x.pow(4).mean() / x.pow(2).mean().pow(2)).item<double>(), 3.0, 0.03);
  // Neighbours, in both directions, have nothing to do with each other.
  EXPECT_NEAR((x.narrow(1, 1, 999) * x.narrow(1, 0, 999)).mean().item<double>() / 0.25, 0.0, 0.005);
  EXPECT_NEAR((x.narrow(0, 1, 999) * x.narrow(0, 0, 999)).mean().item<double>() / 0.25, 0.0, 0.005);
}

TEST(Initialize, FillsOnesAndZeros) {
  model::ParameterSpec spec = matrix({4, 4}, -1);
  spec.init.kind = "ones";
  EXPECT_TRUE(at::equal(values(spec, "a", 1), at::ones({4, 4})));
  spec.init.kind = "zeros";
  EXPECT_TRUE(at::equal(values(spec, "a", 1), at::zeros({4, 4})));
}

TEST(Initialize, PadsTheLastShardWithZeros) {
  for (const int split_dim : {0, 1}) {
    model::ParameterSpec spec = matrix({10, 11, 3}, split_dim);
    const at::Tensor whole = values(spec, "w", 5);
    for (const int degree : {2, 3, 4}) {
      for (int rank = 0; rank < degree; ++rank)
        EXPECT_TRUE(at::equal(values(spec, "w", 5, {rank, degree}), shard_of(whole, spec, {rank, degree}))) << split_dim << " " << rank;
    }
    spec.init.kind = "ones";
    const std::int64_t lacking = 12 - spec.shape[static_cast<std::size_t>(split_dim)];
    const at::Tensor last = values(spec, "w", 5, {2, 3});
    EXPECT_EQ(last.size(split_dim), 4);
    EXPECT_EQ(last.narrow(split_dim, 0, 4 - lacking).min().item<float>(), 1.0f);
    EXPECT_EQ(last.narrow(split_dim, 4 - lacking, lacking).max().item<float>(), 0.0f);
  }
}

}  // namespace
}  // namespace tessera::nn::test
