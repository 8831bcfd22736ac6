// internal: a job's table on parameter servers.
#pragma once

#include "model/job.hpp"
#include "ps/ps.hpp"

namespace tessera::train {

// The one table that holds the rows of all of the model's tables, named like the run, as `parameter_servers:` says it.
ps::TableSpec table_of(const model::JobSpec& job);

}  // namespace tessera::train
