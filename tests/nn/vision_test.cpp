// What the blocks of vision models do beside what tests/train/vision_parity_test.cpp compares with PyTorch.
#include "nn/vision_helper.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "nn/batch_norm.hpp"

namespace tessera::nn::test {
namespace {

Pass pass_over(const Batch& batch) {
  Pass pass;
  pass.batch = &batch;
  pass.drops = true;
  pass.loss_scale = 0.25;
  pass.sample_scale = 0.25;
  return pass;
}

TEST(BatchNorms, ShowTheMeanAndUnbiasedVarianceOfTheirMicroBatch) {
  at::manual_seed(3);
  const at::Tensor maps = at::randn({4, 3, 5, 5}) * 2 + 1;
  const BatchNorm norm{at::rand({3}), at::rand({3}), at::zeros({3}), at::ones({3})};
  Pass pass;
  Tensors shown;
  const at::Tensor out = batch_norm(maps, norm, pass, shown);
  at::Tensor mean = at::zeros({3}), variance = at::ones({3});
  const at::Tensor expected = at::batch_norm(maps, norm.weight, norm.bias, mean, variance, true, 0.1, 1e-5, false);
  EXPECT_TRUE(at::allclose(out, expected, 1e-6, 1e-6));
  ASSERT_EQ(shown.size(), 2);
  EXPECT_TRUE(at::allclose(0.1 * shown[0] / 4, mean, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(0.9 + 0.1 * shown[1] / 4, variance, 1e-5, 1e-6));
  pass.training = false;
  shown.clear();
  const BatchNorm known{norm.weight, norm.bias, mean, variance};
  EXPECT_TRUE(at::allclose(batch_norm(maps, known, pass, shown),
                           at::batch_norm(maps, norm.weight, norm.bias, mean, variance, false, 0.1, 1e-5, false), 1e-6, 1e-6));
}

TEST(BatchNorms, OfOneValueAChannelHaveNoVariance) {
  Tensors shown;
  batch_norm(at::rand({1, 3, 1, 1}), {at::ones({3}), at::zeros({3}), at::zeros({3}), at::ones({3})}, {}, shown);
  EXPECT_TRUE(at::allclose(shown.at(1), at::zeros({3}), 0, 1e-6));
}

// Also of dropout, whose masks are drawn again.
TEST(VisionBlocks, ComputedAgainHaveTheSameLossesGradientsAndStatistics) {
  for (const char* section : {"{arch: resnet18, image: 32, classes: 10}", "{arch: resnet50, image: 32, classes: 10}",
                              "{arch: vgg11, image: 32, classes: 10, norm: true}",
                              "{arch: vit, hidden: 32, layers: 2, heads: 4, image: 16, patch: 4, classes: 10, dropout: 0.1}"}) {
    SCOPED_TRACE(section);
    const model::ModelSpec spec = vision_model(section);
    const Batch batch = random_images(spec, 4);
    VisionModel kept(spec), again(spec);
    const Tensors loss = kept.step(pass_over(batch));
    EXPECT_TRUE(at::equal(loss.at(0), again.step(pass_over(batch), true).at(0)));
    EXPECT_EQ(loss.at(1).item<std::int64_t>(), 4);
    for (std::size_t b = 0; b < kept.instances().size(); ++b)
      for (std::size_t i = 0; i < kept.block(b).parameters().size(); ++i) {
        const Parameter& parameter = kept.block(b).parameters()[i];
        EXPECT_TRUE(at::equal(parameter.grad, again.block(b).parameters()[i].grad)) << parameter.name;
        EXPECT_GT(parameter.grad.abs().max().item<float>(), 0) << parameter.name;
      }
  }
}

TEST(VisionBlocks, ReturnLogitsWithoutLabelsAndLeaveOutLabelsOfMinusOne) {
  for (const char* section : {"{arch: resnet18, image: 32, classes: 10}", "{arch: vgg11, image: 32, classes: 10}",
                              "{arch: vit, hidden: 32, layers: 2, heads: 4, image: 16, patch: 4, classes: 10, dropout: 0.5}"}) {
    SCOPED_TRACE(section);
    const model::ModelSpec spec = vision_model(section);
    VisionModel model(spec);
    Batch batch = random_images(spec, 3);
    Pass pass = pass_over(batch);
    pass.training = pass.drops = false;
    std::vector<Saved> saved;
    batch.tensors["labels"][1] = -1;
    const at::Tensor labels = batch.at("labels");
    const Tensors loss = model.forward(pass, saved);
    EXPECT_EQ(loss.at(1).item<std::int64_t>(), 2);
    batch.tensors.erase("labels");
    const Tensors logits = model.forward(pass, saved);
    ASSERT_EQ(logits.size(), 1);
    EXPECT_EQ(logits.at(0).sizes(), at::IntArrayRef({3, 10}));
    const at::Tensor each = -at::log_softmax(logits.at(0), 1);
    const float expected = (each[0][labels[0].item<std::int64_t>()] + each[2][labels[2].item<std::int64_t>()]).item<float>();
    EXPECT_NEAR(loss.at(0).item<float>(), expected, 1e-5 * expected);
  }
}

TEST(VisionBlocks, ComputeIn16Bits) {
  for (const char* section : {"{arch: resnet18, image: 32, classes: 10}", "{arch: vgg11, image: 32, classes: 10}",
                              "{arch: vit, hidden: 32, layers: 2, heads: 4, image: 16, patch: 4, classes: 10}"}) {
    SCOPED_TRACE(section);
    const model::ModelSpec spec = vision_model(section);
    VisionModel exact(spec), rounded(spec);
    for (std::size_t b = 0; b < rounded.instances().size(); ++b) {
      std::vector<Parameter> parameters = rounded.block(b).parameters();
      for (Parameter& parameter : parameters) parameter.value = parameter.value.to(at::kBFloat16);
      rounded.block(b).bind(std::move(parameters));
    }
    const Batch batch = random_images(spec, 8);
    Pass pass = pass_over(batch);
    pass.drops = false;
    const float loss = exact.step(pass).at(0).item<float>();
    pass.precision = model::Precision::bf16;
    EXPECT_NEAR(rounded.step(pass).at(0).item<float>(), loss, 0.02 * loss);
  }
}

TEST(VisionBlocks, StandWhole) {
  const model::ModelSpec spec = vision_model("{arch: vit, hidden: 32, layers: 2, heads: 4, image: 16, patch: 4, classes: 10}");
  EXPECT_THROW(make_block(spec.repeats[1].block, {.tensor_rank = 0, .tensor_size = 2}), Error);
}

TEST(VisionBlocks, WeighTheLossesOfMixedImages) {
  const model::ModelSpec spec = vision_model("{arch: vit, hidden: 32, layers: 1, heads: 4, image: 16, patch: 4, classes: 10}");
  VisionModel model(spec);
  Batch batch = random_images(spec, 3);
  Pass pass = pass_over(batch);
  pass.training = pass.drops = false;
  const auto loss_with = [&](std::vector<std::int64_t> labels) {
    std::vector<Saved> saved;
    batch.tensors["labels"] = at::tensor(labels);
    return model.forward(pass, saved).at(0).item<float>();
  };
  const float own = loss_with({1, -1, -1}) + loss_with({-1, 2, -1}) * 0.75F;
  const float mixed = loss_with({-1, 4, -1}) * 0.25F + loss_with({-1, -1, 5});
  batch.tensors["mixed_labels"] = at::tensor(std::vector<std::int64_t>{3, 4, 5});
  batch.tensors["mixed_weight"] = at::tensor(std::vector<float>{0, 0.25F, 1});
  EXPECT_NEAR(loss_with({1, 2, 0}), own + mixed, 1e-5);
}

}  // namespace
}  // namespace tessera::nn::test
