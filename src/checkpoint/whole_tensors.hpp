// Internal: a checkpoint of weights that come from elsewhere.
#pragma once

#include <ATen/core/Tensor.h>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/file_system.hpp"
#include "checkpoint/state.hpp"
#include "model/model.hpp"

namespace tessera::checkpoint {

struct WholeTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::function<at::Tensor()> load;  // f32, contiguous, of as many elements
};

// One that begins with initial values, of a parameter that lives as long as it.
WholeTensor begun_anew(const std::string& name, const model::ParameterSpec& parameter, std::uint64_t seed);

// The checkpoint of step 0, without optimizer state, in `folder` (runs/NAME/checkpoints). Of the tensors about 1 GiB is in memory at a
// time. Whole or not at all.
void write_weights(FileSystem& disk, const std::filesystem::path& folder, const std::vector<WholeTensor>& tensors, State state);

}  // namespace tessera::checkpoint
