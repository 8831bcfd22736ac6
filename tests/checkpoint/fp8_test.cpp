#include "checkpoint/fp8.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace tessera::checkpoint {
namespace {

using Shape = std::vector<std::int64_t>;

at::Tensor numbers(const Shape& shape) { return at::arange(shape[0] * shape[1], at::TensorOptions().dtype(at::kFloat)).view(shape); }

TEST(Fp8, HasAScaleForEachBlockAndForWhatTheEdgesCutOfOne) {
  EXPECT_EQ(scales_shape({128, 256}), (Shape{1, 2}));
  EXPECT_EQ(scales_shape({576, 7168}), (Shape{5, 56}));
  EXPECT_EQ(scales_shape({1, 129}), (Shape{1, 2}));
  EXPECT_EQ(scales_shape({0, 5}), (Shape{0, 1}));
}

TEST(Fp8, MultipliesEachBlockByItsScaleAlsoAtTheEdges) {
  for (const Shape& shape : {Shape{130, 257}, Shape{256, 128}, Shape{3, 5}, Shape{384, 200}}) {
    const at::Tensor values = numbers(shape);
    const at::Tensor scales = numbers(scales_shape(shape)).add(0.5);
    const at::Tensor product = values.clone();
    multiply_blocks(product, scales);
    for (std::int64_t row = 0; row < shape[0]; ++row)
      for (std::int64_t column = 0; column < shape[1]; ++column)
        ASSERT_EQ(product[row][column].item<float>(), values[row][column].item<float>() * scales[row / 128][column / 128].item<float>())
            << row << ", " << column << " of " << shape[0] << " x " << shape[1];
  }
}

TEST(Fp8, RefusesScalesOfOtherBlocks) {
  const at::Tensor values = at::ones({130, 257});
  EXPECT_THROW(multiply_blocks(values, at::ones({1, 3})), Error);
  EXPECT_THROW(multiply_blocks(values, at::ones({2, 2})), Error);
  EXPECT_THROW(multiply_blocks(values, at::ones({6})), Error);
}

}  // namespace
}  // namespace tessera::checkpoint
