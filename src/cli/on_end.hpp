// Internal: the user's command at the end of a run, `on_end` of its train.yaml.
#pragma once

#include <filesystem>
#include <functional>

#include "model/job.hpp"

namespace tessera::cli {

// Calls `train`, which trains the run that lies in `run`, and then starts the job's command, where it has one. The command is told in its
// environment how the run ended (docs/train-yaml.md, on_end); it is waited for, and its own failure is a warning. What `train` throws is
// thrown again: an Error of the code `interrupted` makes the outcome `stopped`, any other `failed`.
void with_on_end(const model::JobSpec& job, const std::filesystem::path& run, const std::function<void()>& train);

}  // namespace tessera::cli
