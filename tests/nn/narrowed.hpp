// Convolutional networks small enough for tests: their widths are not of one's choice.
#pragma once

#include <algorithm>

#include "model/model.hpp"

namespace tessera::nn::test {

// With a sixteenth of the channels of ResNet and VGG.
inline model::ModelSpec narrowed(model::ModelSpec model) {
  constexpr std::int64_t kLeast = 64;
  const auto narrow = [](auto& width) {
    if (width >= kLeast) width /= 16;
  };
  for (model::Repeat& repeat : model.repeats) {
    model::BlockSpec& block = repeat.block;
    for (auto& [key, value] : block.dims)
      if (key == "in" || key == "mid" || key == "out" || key == "hidden" || key.starts_with("width")) narrow(value);
    for (model::ParameterSpec& parameter : block.parameters)
      for (std::size_t d = 0; d < std::min<std::size_t>(2, parameter.shape.size()); ++d) narrow(parameter.shape[d]);
    for (auto* const tensors : {&block.inputs, &block.outputs})
      for (model::TensorSpec& tensor : *tensors)
        if (!tensor.shape.empty()) narrow(tensor.shape.front());
  }
  return model;
}

}  // namespace tessera::nn::test
