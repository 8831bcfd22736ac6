#include "nn/block.hpp"

namespace tessera::nn {

const at::Tensor& Batch::at(const std::string& name) const {
  const auto found = tensors.find(name);
  if (found != tensors.end()) return found->second;
  std::string known;
  for (const auto& [other, tensor] : tensors) known += (known.empty() ? "" : ", ") + other;
  throw Error(ErrorCode::invalid_config, text("the model reads '", name, "' of its samples, which the data does not have"), {},
              "one of: " + known);
}

at::Tensor Batch::find(const std::string& name) const {
  const auto found = tensors.find(name);
  return found == tensors.end() ? at::Tensor() : found->second;
}

Batch moved_to(at::Device device, Batch batch) {
  for (auto& [name, tensor] : batch.tensors) tensor = tensor.to(device);
  return batch;
}

}  // namespace tessera::nn
