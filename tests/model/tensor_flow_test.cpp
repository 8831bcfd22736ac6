#include "model/tensor_flow.hpp"

#include <gmock/gmock.h>

#include "base/expect_error.hpp"

namespace tessera::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

BlockSpec block(const std::string& name, std::vector<TensorSpec> inputs, std::vector<TensorSpec> outputs) {
  BlockSpec out;
  out.name = name;
  out.inputs = std::move(inputs);
  out.outputs = std::move(outputs);
  return out;
}

const TensorSpec kHidden{"hidden", {4, 8}};
const TensorSpec kSkip{"skip", {4, 2}};

ModelSpec with_skip(const TensorSpec& read = kSkip) {
  ModelSpec model;
  model.repeats = {{block("embed", {}, {kHidden, kSkip}), 1},
                   {block("layers.{}", {kHidden}, {kHidden}), 2},
                   {block("join", {read, kHidden}, {kHidden}), 1},
                   {block("head", {kHidden}, {{"loss", {}}}), 1}};
  return model;
}

std::vector<std::string> names(const std::vector<TensorSpec>& tensors) {
  std::vector<std::string> out;
  for (const TensorSpec& tensor : tensors) out.push_back(tensor.name);
  return out;
}

TEST(TensorFlow, WhatALaterBlockReadsPassesTheBlocksBetween) {
  const std::vector<BlockFlow> flow = tensor_flow(with_skip());
  ASSERT_EQ(flow.size(), 5u);
  EXPECT_TRUE(flow[0].before.empty());
  EXPECT_THAT(flow[0].after, ElementsAre(0, 1));
  EXPECT_THAT(names(flow[1].before), ElementsAre("hidden", "skip"));
  EXPECT_THAT(flow[1].reads, ElementsAre(0));
  EXPECT_THAT(flow[1].after, ElementsAre(-2, 0));
  EXPECT_THAT(names(flow[2].before), ElementsAre("skip", "hidden"));
  EXPECT_THAT(flow[2].reads, ElementsAre(1));
  EXPECT_THAT(names(flow[3].before), ElementsAre("skip", "hidden"));
  EXPECT_THAT(flow[3].reads, ElementsAre(0, 1));
  EXPECT_THAT(flow[3].after, ElementsAre(0));
  EXPECT_THAT(names(flow[4].before), ElementsAre("hidden"));
  EXPECT_TRUE(flow[4].after.empty());
  EXPECT_THAT(elements_before(flow), ElementsAre(0, 40, 40, 40, 32));
}

TEST(TensorFlow, WhatIsMadeAnewIsAnotherTensor) {
  ModelSpec model = with_skip();
  model.repeats[2].block.inputs = {kHidden};
  model.repeats[2].block.outputs = {kHidden, kSkip};
  model.repeats[3].block.inputs = {kHidden, kSkip};
  // The first skip is read by none.
  EXPECT_THAT(testing::error_of([&] { tensor_flow(model); }).what(), HasSubstr("block embed makes skip, which no block behind it reads"));
  model.repeats[0].block.outputs = {kHidden};
  EXPECT_THAT(names(tensor_flow(model)[4].before), ElementsAre("hidden", "skip"));
}

TEST(TensorFlow, ALossIsReadByNone) {
  ModelSpec model = with_skip();
  model.repeats[2].block.outputs.push_back({"second_loss", {}});
  EXPECT_THAT(names(tensor_flow(model)[4].before), ElementsAre("hidden"));
}

TEST(TensorFlow, WhatNoBlockMakesIsAnError) {
  const Error error = testing::error_of([] { tensor_flow(with_skip({"skp", {4, 2}})); });
  EXPECT_THAT(error.what(), HasSubstr("block join reads skp, which no block before it makes"));
  EXPECT_EQ(error.hint(), "did you mean 'skip'?");
  EXPECT_THAT(testing::error_of([] {
                tensor_flow(with_skip({"skip", {4, 3}}));
              }).what(),
              HasSubstr("block join reads skip as [4, 3], and it is made as [4, 2]"));
}

}  // namespace
}  // namespace tessera::model
