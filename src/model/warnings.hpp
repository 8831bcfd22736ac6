// What a train.yaml says that its writer may not have meant.
#pragma once

#include <string>
#include <vector>

#include "model/job.hpp"

namespace tessera::model {

// A sentence each.
std::vector<std::string> warnings_of(const JobSpec& job);

}  // namespace tessera::model
