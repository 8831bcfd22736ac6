// Internal: models of plug-ins, which need libtorch, for a command that has none.
#pragma once

#include "base/config.hpp"
#include "model/model.hpp"

namespace tessera::cli {

// Asks tessera-worker, which loads the plug-in. The same section is asked for once. Throws what the worker throws.
model::ModelSpec described_model(const ConfigNode& section);

}  // namespace tessera::cli
