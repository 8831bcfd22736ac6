// Internal: the `parameter_servers:` section of a train.yaml.
#pragma once

#include "model/job.hpp"

namespace tessera::model {

// Reads the section for a training of `steps` steps. Throws invalid_config for anything wrong in it.
ParameterServerSpec read_parameter_servers(const ConfigNode& node, std::int64_t steps);
// Its `lifecycle:`.
LifecycleSpec read_lifecycle(const ConfigNode& node);

}  // namespace tessera::model
