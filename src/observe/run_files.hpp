// What a run keeps of its making, beside what the training writes into it (run.hpp).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "data/tokenizer.hpp"
#include "model/job.hpp"
#include "observe/run.hpp"
#include "plan/plan.hpp"

namespace tessera::observe {

// What is resumed goes on with the same model and the same tokens. Throws invalid_config where `job` has another model than the run, or
// `tokenizer` (null: none) differs from the run's. Touches nothing.
void check_resumed(const model::JobSpec& job, const data::Tokenizer* tokenizer, const std::filesystem::path& run);

// prepare_run, and then train.yaml, plan.json, cluster.yaml and the tokenizer's file. train.yaml is that of `train_yaml` with
// `overrides` and with absolute paths: it is read again from other folders. What this throws before the disk refuses leaves the run as
// it was.
RunLock make_run(const std::filesystem::path& run, IfExists if_exists, const std::filesystem::path& train_yaml,
                 const std::vector<std::string>& overrides, const plan::Plan& plan, const cluster::ClusterSpec& cluster,
                 const data::Tokenizer* tokenizer);

}  // namespace tessera::observe
