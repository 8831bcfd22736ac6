// Internal: which tensors of a Hugging Face folder hold a parameter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model.hpp"

namespace tessera::checkpoint {

struct HfTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};

// The tensors whose elements, one after another, are those of the parameter: mostly one of its own name. Of routed experts each has
// matrices of its own.
std::vector<HfTensor> hf_tensors(const model::ModelSpec& model, const model::BlockInstance& block, const model::ParameterSpec& parameter);

}  // namespace tessera::checkpoint
