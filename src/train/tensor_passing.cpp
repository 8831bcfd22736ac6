#include "train/tensor_passing.hpp"

#include <ATen/TensorOperators.h>

namespace tessera::train {

nn::Tensors read_by(const model::BlockFlow& flow, const nn::Tensors& before) {
  nn::Tensors out;
  for (const int place : flow.reads) out.push_back(before.at(static_cast<std::size_t>(place)));
  return out;
}

nn::Tensors tensors_after(const model::BlockFlow& flow, const nn::Tensors& before, const nn::Tensors& outputs) {
  nn::Tensors out;
  for (std::size_t i = 0; i < flow.after.size(); ++i) out.push_back(flow.passes(i) ? before.at(flow.passed(i)) : outputs.at(flow.made(i)));
  return out;
}

nn::Tensors gradients_of_outputs(const model::BlockFlow& flow, const nn::Tensors& after) {
  nn::Tensors out;
  for (std::size_t i = 0; i < flow.after.size(); ++i) {
    if (flow.passes(i)) continue;
    out.resize(std::max(out.size(), flow.made(i) + 1));
    out[flow.made(i)] = after.at(i);
  }
  return out;
}

nn::Tensors gradients_before(const model::BlockFlow& flow, const nn::Tensors& after, const nn::Tensors& inputs) {
  nn::Tensors out(flow.before.size());
  for (std::size_t i = 0; i < flow.after.size(); ++i)
    if (flow.passes(i)) out[flow.passed(i)] = after.at(i);
  for (std::size_t i = 0; i < flow.reads.size(); ++i) {
    at::Tensor& gradient = out[static_cast<std::size_t>(flow.reads[i])];
    gradient = gradient.defined() ? gradient + inputs.at(i) : inputs.at(i);
  }
  return out;
}

}  // namespace tessera::train
