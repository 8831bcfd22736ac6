// Internal: the `data:` section of a train.yaml.
#pragma once

#include "model/job.hpp"

namespace tessera::model {

// Throws invalid_config for all that is wrong in it.
DataSpec read_data(const ConfigNode& node);
// What of it needs to know the model. Throws invalid_config.
void check_data(const ConfigNode& node, const DataSpec& data, const ModelSpec& model);

}  // namespace tessera::model
