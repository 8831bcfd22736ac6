// What the blocks of vision models do beside what tests/train/vision_parity_test.cpp compares with PyTorch.
#include "nn/vision_helper.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

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

// Of 3 channels.
struct Norm {
  Norm(const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& mean, const at::Tensor& variance) {
    for (const at::Tensor& value : {weight, bias, mean, variance}) parameters.push_back({nullptr, "", value, at::zeros({3})});
    ParameterRow row(parameters);
    norm.bind(row);
  }
  std::vector<Parameter> parameters;
  BatchNorm norm;
};

TEST(BatchNorms, ShowTheMeanAndUnbiasedVarianceOfTheirMicroBatch) {
  at::manual_seed(3);
  const at::Tensor maps = (at::randn({4, 3, 5, 5}) * 2 + 1).requires_grad_(true);
  const at::Tensor weight = at::rand({3}).requires_grad_(true), bias = at::rand({3}).requires_grad_(true);
  const Norm of(weight.detach(), bias.detach(), at::zeros({3}), at::ones({3}));
  Pass pass;
  pass.sample_scale = 0.25;
  Tensors kept(BatchNorm::kKeptCount);
  const at::Tensor out = of.norm.forward(maps.detach(), kept, pass);
  at::Tensor mean = at::zeros({3}), variance = at::ones({3});
  const at::Tensor expected = at::batch_norm(maps, weight, bias, mean, variance, true, 0.1, 1e-5, false);
  EXPECT_TRUE(at::allclose(out, expected, 1e-6, 1e-6));

  const at::Tensor grad = at::randn_like(out);
  const auto grads = torch::autograd::grad({expected}, {maps, weight, bias}, {grad});
  EXPECT_TRUE(at::allclose(of.norm.backward_input(grad, kept, pass), grads[0], 1e-5, 1e-6));
  of.norm.backward_weight(kept, pass);
  EXPECT_TRUE(at::allclose(of.parameters[0].grad, grads[1], 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(of.parameters[1].grad, grads[2], 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(0.1 * of.parameters[2].grad, mean, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(0.9 + 0.1 * of.parameters[3].grad, variance, 1e-5, 1e-6));

  pass.training = false;
  const Norm known(weight.detach(), bias.detach(), mean, variance);
  const at::Tensor by_known = at::batch_norm(maps.detach(), weight.detach(), bias.detach(), mean, variance, false, 0.1, 1e-5, false);
  EXPECT_TRUE(at::allclose(known.norm.forward(maps.detach(), kept, pass), by_known, 1e-6, 1e-6));
}

TEST(BatchNorms, OfOneValueAChannelHaveNoVariance) {
  const Norm of(at::ones({3}), at::zeros({3}), at::zeros({3}), at::ones({3}));
  Tensors kept(BatchNorm::kKeptCount);
  of.norm.forward(at::rand({1, 3, 1, 1}), kept, {});
  EXPECT_TRUE(at::allclose(kept[BatchNorm::kShown][1], at::zeros({3}), 0, 1e-6));
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
    const at::Tensor right = logits.at(0).argmax(1) == labels;
    EXPECT_EQ(loss.at(2).item<std::int64_t>(), right[0].item<std::int64_t>() + right[2].item<std::int64_t>());
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
