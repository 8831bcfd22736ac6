// What a run keeps of its making, beside what the training writes into it (run.hpp).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "data/dataset.hpp"
#include "model/job.hpp"
#include "observe/run.hpp"
#include "plan/plan.hpp"

namespace tessera::observe {

// prepare_run, and then train.yaml (`yaml`), plan.json, cluster.yaml, data.json and the tokenizer's file. What this throws before the disk
// refuses leaves the run as it was.
RunLock make_run(const std::filesystem::path& run, IfExists if_exists, const model::JobSpec& job, const std::string& yaml,
                 const plan::Plan& plan, const cluster::ClusterSpec& cluster, const data::Dataset& dataset);

}  // namespace tessera::observe
