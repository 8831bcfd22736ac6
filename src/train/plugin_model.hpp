// Models from shared libraries (nn/plugin.hpp).
#pragma once

#include "base/config.hpp"
#include "model/model.hpp"

namespace tessera::train {

// The model that a section with the key `plugin` describes, with the costs of its blocks, each measured with one random sample of text.
// Loads the library; the same section is read once. Throws invalid_config or not_found, which name the section's keys or the block.
model::ModelSpec read_plugin_model(const ConfigNode& section);

}  // namespace tessera::train
