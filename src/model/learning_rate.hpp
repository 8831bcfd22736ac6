// Internal: the `schedule:` of a train.yaml.
#pragma once

#include <cstdint>

#include "base/config.hpp"
#include "model/job.hpp"

namespace tessera::model {

// Of a training of `steps` steps: shares of them become steps here. `kind`: where none is said. Throws invalid_config.
LrScheduleSpec read_schedule(const ConfigNode& node, std::int64_t steps, LrScheduleKind kind);

}  // namespace tessera::model
