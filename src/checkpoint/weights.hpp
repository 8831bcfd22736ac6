// The weights of a checkpoint, for those who only compute with them.
#pragma once

#include <filesystem>

#include "model/model.hpp"

namespace tessera::checkpoint {

// Writes the parameters and buffers that ranks hold (none of tables on servers), without optimizer state, as the checkpoint of step 0 in
// `folder`, which need not exist: one rank's ordinary safetensors, and a manifest. Whole or not at all. Throws invalid_config where the
// checkpoint is of another model, corrupt, io.
void copy_weights(const std::filesystem::path& checkpoint, const model::ModelSpec& model, const std::filesystem::path& folder);

}  // namespace tessera::checkpoint
