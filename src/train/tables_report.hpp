// internal: what a run's table and its servers have come to, for whoever looks at the run.
#pragma once

#include <string>
#include <vector>

#include "base/units.hpp"
#include "model/job.hpp"
#include "ps/client.hpp"

namespace tessera::train {

struct TablesReport {
  Seconds passed;                         // since the first look
  std::int64_t steps = 0;                 // that were made meanwhile
  std::vector<ps::ServerStatus> servers;  // of job.parameter_servers.places; counts since the first look
  ps::Staleness seen;                     // by all ranks
};

// servers.json of a run (docs/file-formats.md).
std::string to_json(const TablesReport& report, const model::JobSpec& job);

}  // namespace tessera::train
