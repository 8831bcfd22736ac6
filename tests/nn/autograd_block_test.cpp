// What a block of a forward function alone adds to its parameters' gradients and to its buffers.
#include "nn/autograd_block.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

namespace tessera::nn {
namespace {

constexpr std::int64_t kFeatures = 3;

// y = x * weight - mean, and a running mean of x.
model::BlockSpec centered() {
  model::ParameterSpec weight{.name = "weight", .shape = {kFeatures}};
  model::ParameterSpec mean{.name = "mean", .shape = {kFeatures}};
  mean.buffer_momentum = 0.1;
  model::ParameterSpec bias{.name = "bias", .shape = {kFeatures}};
  return {"centered", "centered", {}, {weight, mean, bias}, {{"x", {kFeatures}}}, {{"y", {kFeatures}}}, {}};
}

Tensors forward(const Tensors& inputs, const Tensors& parameters, const Pass&) {
  return {inputs[0] * parameters[0] - parameters[1] + parameters[2], inputs[0].detach().sum(0)};
}

class Buffers : public testing::Test {
 protected:
  void bind(const ForwardFunction& function) {
    block = make_autograd_block(spec, function);
    std::vector<Parameter> parameters;
    for (const model::ParameterSpec& parameter : spec.parameters)
      parameters.push_back({&parameter, parameter.name, at::full(parameter.shape, 2.0), at::zeros(parameter.shape)});
    block->bind(std::move(parameters));
    pass.sample_scale = 0.25;
  }
  at::Tensor grad(std::size_t parameter) const { return block->parameters().at(parameter).grad; }

  const model::BlockSpec spec = centered();
  const at::Tensor x = at::arange(6, at::kFloat).view({2, kFeatures});
  std::unique_ptr<Block> block;
  Pass pass;
};

TEST_F(Buffers, TakeWhatSamplesShowOnceForABackwardPass) {
  bind(forward);
  Saved none, saved;
  Pass unsaved = pass;
  unsaved.training = false;
  const Tensors first = block->forward({x}, none, unsaved);  // as before recomputation
  const Tensors again = block->forward({x}, saved, pass);
  EXPECT_EQ(again.size(), 1);
  EXPECT_TRUE(at::equal(first.at(0), again.at(0)));
  EXPECT_TRUE(at::equal(grad(1), at::zeros({kFeatures}))) << "nothing before the backward pass";
  const Tensors input_grads = block->backward_input({at::ones({2, kFeatures})}, saved, pass);
  block->backward_weight(saved, pass);
  EXPECT_TRUE(at::equal(input_grads.at(0), at::full({2, kFeatures}, 2.0)));
  EXPECT_TRUE(at::equal(grad(0), x.sum(0)));
  EXPECT_TRUE(at::equal(grad(1), x.sum(0) * 0.25));
  EXPECT_TRUE(at::equal(grad(2), at::full({kFeatures}, 2.0)));
}

TEST_F(Buffers, ThatAForwardPassForgetsOrShapesOtherwiseAreNamed) {
  const auto message = [&](const ForwardFunction& function) -> std::string {
    bind(function);
    Saved saved;
    try {
      block->forward({x}, saved, pass);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message([](const Tensors&, const Tensors&, const Pass&) { return Tensors{}; }),
              testing::HasSubstr("block centered returns 0 tensors"));
  EXPECT_THAT(message([](const Tensors& inputs, const Tensors&, const Pass&) {
                return Tensors{inputs[0], inputs[0]};
              }),
              testing::AllOf(testing::HasSubstr("Float [2, 3] for its buffer mean"), testing::HasSubstr("Float [3]")));
}

}  // namespace
}  // namespace tessera::nn
