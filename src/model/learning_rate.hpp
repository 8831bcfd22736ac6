// Internal: the `schedule:` of a train.yaml.
#pragma once

#include <cstdint>

#include "base/config.hpp"
#include "model/job.hpp"

namespace tessera::model {

// Reads the schedule of a training of `steps` steps; shares of the training become steps. `kind`: the default. Throws invalid_config.
LrScheduleSpec read_schedule(const ConfigNode& node, std::int64_t steps, LrScheduleKind kind);

}  // namespace tessera::model
